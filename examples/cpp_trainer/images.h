// Images and labels from the file that export_images.py writes.
//
// The file, little-endian: "PTIMAGES", six uint32 (images to train on, images
// to test on, channels, height, width, classes), then for both parts float32
// pixels [images, channels, height, width] and one uint8 label per image.
#ifndef PACTRAIN_EXAMPLES_CPP_TRAINER_IMAGES_H_
#define PACTRAIN_EXAMPLES_CPP_TRAINER_IMAGES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace pactrain::example {

struct Part {
  std::vector<float> pixels;
  std::vector<uint8_t> labels;
};

struct Images {
  uint32_t channels = 0;
  uint32_t height = 0;
  uint32_t width = 0;
  uint32_t classes = 0;
  Part train;
  Part test;
};

// std::runtime_error: cannot be read, or is not such a file; says why.
Images ReadImages(const std::string& path);

}  // namespace pactrain::example

#endif  // PACTRAIN_EXAMPLES_CPP_TRAINER_IMAGES_H_
