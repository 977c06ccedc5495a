// Tests the URLs of NIXL, and libraries that are not NIXL's. tests/remote/ tests NIXL itself.
#include <gtest/gtest.h>

#include "impl/remote/nixl_backend.hpp"
#include "impl/remote/remote_backend.hpp"
#include "tests/folder.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

TEST(NixlUrl, names_a_folder_or_a_bucket) {
  auto config = std::get<NixlConfig>(parse_nixl_url("nixl+posix:///nvme/pages?library=/a/b"));
  EXPECT_EQ(config.folder, "/nvme/pages");
  EXPECT_EQ(config.library, "/a/b");
  config = std::get<NixlConfig>(parse_nixl_url("nixl+obj://kv-pages?endpoint=http://10.0.0.1:8333/&region=eu-1"));
  EXPECT_TRUE(config.folder.empty());
  EXPECT_EQ(config.s3.bucket, "kv-pages");
  EXPECT_EQ(config.s3.endpoint, "http://10.0.0.1:8333");
  EXPECT_EQ(config.s3.region, "eu-1");
}

TEST(NixlUrl, what_is_wrong_is_one_sentence_that_does_not_repeat_it) {
  for (const char* url :
       {"nixl+posix://secret", "nixl+posix://", "nixl+posix:///secret?endpoint=http://a", "nixl+obj://secret",
        "nixl+obj://?endpoint=http://secret", "nixl+obj://SECRET?endpoint=http://a",
        "nixl+obj://secret?endpoint=secret", "nixl+obj://secret?endpoint=http://a&key=secret", "nixl+gds:///secret"}) {
    const auto parsed = parse_nixl_url(url);
    ASSERT_TRUE(std::holds_alternative<std::string>(parsed)) << url;
    const std::string& sentence = std::get<std::string>(parsed);
    EXPECT_TRUE(sentence.ends_with('.')) << sentence;
    EXPECT_EQ(sentence.find("secret"), std::string::npos) << sentence;
  }
}

TEST(NixlUrl, a_bucket_needs_keys_which_are_no_part_of_the_url) {
  for (const char* password : {"", "access", "access:"}) {
    const RemoteTerms terms{"nixl+obj://bucket?endpoint=http://127.0.0.1:9", password, "", 0, nullptr};
    const auto opened = open_remote_backend(terms, kSmallForm);
    ASSERT_TRUE(std::holds_alternative<std::string>(opened));
    EXPECT_NE(std::get<std::string>(opened).find("AWS_ACCESS_KEY_ID"), std::string::npos);
  }
}

TEST(RemoteUrl, of_an_unknown_kind_is_refused_with_the_known_ones) {
  const auto opened = open_remote_backend({"http://secret", "", "", 0, nullptr}, kSmallForm);
  const std::string& sentence = std::get<std::string>(opened);
  EXPECT_NE(sentence.find("mooncake://"), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find("secret"), std::string::npos) << sentence;
}

TEST(NixlLibrary, one_that_is_no_such_library_is_refused_with_what_would_help) {
  const Folder folder;
  const auto error_of = [](const std::string& place) -> std::string {
    try {
      load_nixl(place);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of(folder.path().string()).find("There is no NIXL in "), std::string::npos);
  EXPECT_NE(error_of(folder / "libnixl_capi.so").find("can't be loaded"), std::string::npos);
  EXPECT_NE(error_of("libm.so.6").find("nixl_capi_"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test
