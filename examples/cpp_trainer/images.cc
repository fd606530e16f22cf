#include "examples/cpp_trainer/images.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <stdexcept>

namespace pactrain::example {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'P', 'T', 'I', 'M', 'A', 'G', 'E', 'S'};
constexpr uint64_t kMaxPixels = uint64_t{1} << 30;  // Of one part: 4 GiB.

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + " " + what +
                           ".\nWrite it with "
                           "examples/cpp_trainer/export_images.py.");
}

template <typename T>
void Read(std::ifstream& file, const std::string& path, T* to, size_t count) {
  file.read(reinterpret_cast<char*>(to),
            static_cast<std::streamsize>(count * sizeof(T)));
  if (!file) Fail(path, "cannot be read, or ends too early");
}

Part ReadPart(std::ifstream& file, const std::string& path, uint32_t images,
              uint64_t pixels_each, uint32_t classes) {
  if (images == 0 || pixels_each == 0 || images > kMaxPixels / pixels_each) {
    Fail(path, "has a part of " + std::to_string(images) + " images of " +
                   std::to_string(pixels_each) +
                   " pixels; allowed are 1 to 2^30 pixels");
  }
  Part part;
  part.pixels.resize(images * pixels_each);
  part.labels.resize(images);
  Read(file, path, part.pixels.data(), part.pixels.size());
  Read(file, path, part.labels.data(), part.labels.size());
  if (!std::all_of(part.pixels.begin(), part.pixels.end(),
                   [](float pixel) { return std::isfinite(pixel); })) {
    Fail(path, "has pixels that are no finite numbers");
  }
  const uint8_t largest = *std::max_element(part.labels.begin(),  //
                                            part.labels.end());
  if (largest >= classes) {
    Fail(path, "has a label " + std::to_string(largest) + " of " +
                   std::to_string(classes) + " classes");
  }
  return part;
}

}  // namespace

Images ReadImages(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 8> magic = {};
  std::array<uint32_t, 6> header = {};
  Read(file, path, magic.data(), magic.size());
  if (magic != kMagic) Fail(path, "is not a file of images");
  Read(file, path, header.data(), header.size());
  Images images = {.channels = header[2],
                   .height = header[3],
                   .width = header[4],
                   .classes = header[5],
                   .train = {},
                   .test = {}};
  constexpr uint32_t kMaxSide = 4096;
  for (size_t i = 2; i < 5; ++i) {
    if (header[i] > kMaxSide) {
      Fail(path, "has images of a size over " + std::to_string(kMaxSide));
    }
  }
  const uint64_t pixels =
      uint64_t{header[2]} * uint64_t{header[3]} * uint64_t{header[4]};
  images.train = ReadPart(file, path, header[0], pixels, images.classes);
  images.test = ReadPart(file, path, header[1], pixels, images.classes);
  if (file.peek() != std::ifstream::traits_type::eof()) {
    Fail(path, "goes on after its images");
  }
  return images;
}

}  // namespace pactrain::example
