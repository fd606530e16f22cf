// The plain packing of codes: one column at a time. See levels_format.h.
#include <cstddef>
#include <cstdint>

#include "kernels/levels_format.h"

namespace pactrain::kernels::levels {
namespace {

// A column of codes or bytes: entry i lies `plane` bytes after entry i - 1.
template <class Byte>
class Column {
 public:
  Column(Byte* first, size_t plane) : first_(first), plane_(plane) {}
  Byte& operator[](size_t i) const { return first_[i * plane_]; }

 private:
  Byte* first_;
  size_t plane_;
};
using In = Column<const uint8_t>;
using Out = Column<uint8_t>;

uint8_t Byte(unsigned value) { return static_cast<uint8_t>(value); }

void Pack3(In s, Out b) {
  b[0] = Byte(s[0] + 3 * (s[1] + 3 * (s[2] + 3 * (s[3] + 3 * s[4]))));
}

void Unpack3(In b, Out s) {
  unsigned rest = b[0];
  for (int i = 0; i < 4; ++i, rest /= 3) s[i] = Byte(rest % 3);
  s[4] = Byte(rest);
}

void Pack5(In s, Out b) {
  const unsigned eighth = s[21] + 5 * (s[22] + 5 * s[23]);
  for (int i = 0; i < 7; ++i) {
    const unsigned word = s[3 * i] + 5 * (s[3 * i + 1] + 5 * s[3 * i + 2]);
    b[i] = Byte(word | (eighth >> i & 1) << 7);
  }
}

void Unpack5(In b, Out s) {
  unsigned eighth = 0;
  for (int i = 0; i < 8; ++i) {
    unsigned word = eighth;
    if (i < 7) {
      eighth |= b[i] >> 7 << i;
      word = b[i] & 0x7f;
    }
    s[3 * i] = Byte(word % 5);
    s[3 * i + 1] = Byte(word / 5 % 5);
    s[3 * i + 2] = Byte(word / 25);
  }
}

// The last three codes as four digits under 5: two words of 7 * 3 <= 5 * 5.
void Pack7(In s, Out b) {
  const unsigned x = s[8] + 7 * (s[10] / 3);
  const unsigned y = s[9] + 7 * (s[10] % 3);
  const unsigned digits[4] = {x % 5, x / 5, y % 5, y / 5};
  for (int i = 0; i < 4; ++i) {
    b[i] = Byte(digits[i] + 5 * (s[2 * i] + 7 * s[2 * i + 1]));
  }
}

void Unpack7(In b, Out s) {
  unsigned digits[4];
  for (int i = 0; i < 4; ++i) {
    const unsigned pair = b[i] / 5;
    digits[i] = b[i] % 5;
    s[2 * i] = Byte(pair % 7);
    s[2 * i + 1] = Byte(pair / 7);
  }
  const unsigned x = digits[0] + 5 * digits[1];
  const unsigned y = digits[2] + 5 * digits[3];
  s[8] = Byte(x % 7);
  s[9] = Byte(y % 7);
  // y / 7 is under 3 in what Pack7 writes.
  s[10] = y / 7 == 3 ? 0xff : Byte(3 * (x / 7) + y / 7);
}

void Pack15(In s, Out b) { b[0] = Byte(s[0] | s[1] << 4); }

void Unpack15(In b, Out s) {
  s[0] = b[0] & 15;
  s[1] = b[0] >> 4;
}

void Pack31(In s, Out b) {
  for (int i = 0; i < 3; ++i) b[i] = Byte(s[i] | s[5 + i] << 5);
  b[3] = Byte(s[3] | s[5] >> 3 << 5 | (s[7] >> 3 & 1) << 7);
  b[4] = Byte(s[4] | s[6] >> 3 << 5 | s[7] >> 4 << 7);
}

void Unpack31(In b, Out s) {
  for (int i = 0; i < 5; ++i) s[i] = b[i] & 31;
  s[5] = Byte(b[0] >> 5 | (b[3] >> 5 & 3) << 3);
  s[6] = Byte(b[1] >> 5 | (b[4] >> 5 & 3) << 3);
  s[7] = Byte(b[2] >> 5 | b[3] >> 7 << 3 | b[4] >> 7 << 4);
}

template <void (*kColumn)(In, Out)>
void Columns(const uint8_t* in, size_t plane, uint8_t* out) {
  for (size_t j = 0; j < plane; ++j) {
    kColumn(In(in + j, plane), Out(out + j, plane));
  }
}

}  // namespace

void ReferencePack(Levels levels, const uint8_t* codes, size_t plane,
                   uint8_t* out) {
  switch (levels) {
    case Levels::k3:
      return Columns<Pack3>(codes, plane, out);
    case Levels::k5:
      return Columns<Pack5>(codes, plane, out);
    case Levels::k7:
      return Columns<Pack7>(codes, plane, out);
    case Levels::k15:
      return Columns<Pack15>(codes, plane, out);
    case Levels::k31:
      return Columns<Pack31>(codes, plane, out);
  }
}

void ReferenceUnpack(Levels levels, const uint8_t* in, size_t plane,
                     uint8_t* codes) {
  switch (levels) {
    case Levels::k3:
      return Columns<Unpack3>(in, plane, codes);
    case Levels::k5:
      return Columns<Unpack5>(in, plane, codes);
    case Levels::k7:
      return Columns<Unpack7>(in, plane, codes);
    case Levels::k15:
      return Columns<Unpack15>(in, plane, codes);
    case Levels::k31:
      return Columns<Unpack31>(in, plane, codes);
  }
}

}  // namespace pactrain::kernels::levels
