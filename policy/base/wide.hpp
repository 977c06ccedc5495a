// Integers of 128 bits, for products that do not fit into 64 bits.
#pragma once

namespace kvtwin {

__extension__ using Wide = __int128;
__extension__ using UnsignedWide = unsigned __int128;

}  // namespace kvtwin
