// Secrets of real storage tiers. They stand in no experiment and are not written anywhere.
#pragma once

#include <string>

namespace kvtwin {

struct StorageSecrets {
  std::string redis_password;  // of the servers in tiers.remote.url; empty = none
  std::string page_key;        // of the checks that stored pages carry (impl/storage/page_seal.hpp); empty = none
};

}  // namespace kvtwin
