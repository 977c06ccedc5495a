// Secrets of real storage tiers. They are never part of an experiment, and never written to a file.
#pragma once

#include <string>

namespace kvtwin {

struct StorageSecrets {
  std::string redis_password;  // for the servers in tiers.remote.url; empty = none
  std::string s3_keys;         // for an S3 bucket in tiers.remote.url: "ACCESS_KEY:SECRET_KEY"; empty = none
  std::string page_key;        // for the checks of stored pages (impl/storage/page_seal.hpp); empty = none
};

}  // namespace kvtwin
