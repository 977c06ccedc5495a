// Real runs with a draft model on engines that only prefill or only decode: its KV goes with the pages to the decode
// engines, on every rank. A draft model of decode engines alone leaves out the pages that came without its KV.
#include <gtest/gtest.h>

#include <string>

#include "tests/hybrid_run.hpp"
#include "tests/remote/roles_run.hpp"

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

// The target's own model, so that its KV can also be packed.
Settings drafted(const Folder& folder, const std::string& kind) {
  return {"model.draft.kind=" + kind, "model.draft.config=" + (folder / "config.json"),
          "model.draft.accept_length=2.6"};
}

const Json& verified(const Simulated& real) { return real.report.at("real").at("verified"); }

TEST(RealRolesWithADraft, DecideAsInTheSimulation) {
  for (const char* kind : {"side_pool", "packed"}) {
    for (const std::size_t ranks : {1U, 2U}) {
      SCOPED_TRACE(std::string(kind) + ", ranks " + std::to_string(ranks));
      const Folder folder;
      const Simulated real =
          expect_simulated_decisions(folder, model_of_ranks(folder) + drafted(folder, kind), 2, ranks);
      if (std::string(kind) == "packed") {
        EXPECT_FALSE(verified(real).contains("draft")) << "its layers are the target's last ones";
      } else {
        EXPECT_GT(verified(real).at("draft").at("pages_read"), 0);
        EXPECT_EQ(verified(real).at("draft").at("pages_left_out"), 0);
      }
    }
  }
}

// Pages are evicted, and come back from the host and from a disk with the draft's KV.
TEST(RealRolesWithADraft, ServeABusyStream) {
  for (const std::size_t ranks : {1U, 2U}) {
    SCOPED_TRACE(ranks);
    const Folder folder;
    const std::size_t decode = ranks == 1 ? 2 : 1;
    const Settings work = busy_ranks(folder, 4, 100);
    const Outcome outcome =
        run_ranks(folder,
                  work + drafted(folder, "side_pool") + with_roles(1, decode, ranks) + with_library() +
                      Settings{"tiers.device.tokens=900", "tiers.disk.tokens=8192",
                               "tiers.disk.path=" + (folder / "disk"), "cache.prefetch_min_tokens=4"},
                  (1 + decode) * ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Simulated real = read_run(outcome, folder / "run");
    EXPECT_EQ(real.requests("completed") + real.requests("rejected"), 100U);
    expect_right_pages(folder, real, 1 + decode, ranks);
    EXPECT_GT(verified(real).at("draft").at("pages_read"), 0);
    EXPECT_EQ(verified(real).at("draft").at("pages_left_out"), 0);
  }
}

TEST(RealRolesWithADraft, WindowsAndStatesGoWithThem) {
  for (const HybridKind& kind : kHybridKinds) {
    SCOPED_TRACE(kind.verified);
    const Folder folder;
    const Settings work = busy_ranks(folder, 6, 60);
    const Settings model = drafted(folder, "side_pool");
    write_text(folder / "draft.json", text_of(folder / "config.json"));
    write_text(folder / "config.json", kind.config);
    const Outcome outcome = run_ranks(folder,
                                      work + model + with_roles(1, 1) + with_library() +
                                          Settings{"model.draft.config=" + (folder / "draft.json"), kind.device_setting,
                                                   "engine=sglang", "serving.engine=none"},
                                      2);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Simulated real = read_run(outcome, folder / "run");
    expect_right_pages(folder, real, 2);
    EXPECT_GT(verified(real).at("draft").at("pages_read"), 0);
    EXPECT_GT(verified(real).at(kind.verified).at("read"), 0);
  }
}

TEST(RealRolesWithADraft, OnlyDecodeEnginesLeaveOutPagesWithoutItsKv) {
  for (const std::size_t ranks : {1U, 2U}) {
    SCOPED_TRACE(ranks);
    const Folder folder;
    const Settings work = busy_ranks(folder, 4, 60);
    const Outcome outcome = run_ranks(
        folder,
        work + with_roles(1, 1, ranks) + with_library() +
            Settings{"cluster.decode_set=model.draft.kind=side_pool, model.draft.config=" + (folder / "config.json") +
                     ", model.draft.accept_length=2.6, model.draft.restore=false"},
        2 * ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Simulated real = read_run(outcome, folder / "run");
    expect_right_pages(folder, real, 2, ranks);
    EXPECT_GT(verified(real).at("draft").at("pages_left_out"), 0);
    EXPECT_GT(verified(real).at("draft").at("pages_read"), 0) << "those of answers";
  }
}

TEST(RealRolesWithADraft, TheOthersServeTheRequestsOfADecodeEngineThatDies) {
  expect_others_serve(2, 2, 1, 3, [](const Folder& folder) { return drafted(folder, "side_pool"); });
}

}  // namespace
}  // namespace kvtwin::test
#endif
