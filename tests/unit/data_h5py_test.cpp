// Token files written by h5py: the example of docs/formats.md as it stands there, and attributes in other types. Run from the tree's root.
#include "data_files.hpp"

#include "sherd/data/token_file.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace sherd {
namespace {

using namespace test;

std::string python() {
    const char* given = std::getenv("PYTHON");
    return given != nullptr ? given : "/usr/bin/python3";
}
bool has_h5py() {
    return std::system((python() + " -c 'import h5py' >/dev/null 2>&1").c_str()) == 0;
}

/// Runs a script in the folder.
void run_script(const TokenFolder& folder, const std::string& script) {
    std::ofstream(folder / "script.py") << script;
    ASSERT_EQ(std::system(("cd '" + (folder / ".").string() + "' && " + python() + " script.py").c_str()), 0) << script;
}

std::string documented_example() {
    std::ifstream page("docs/formats.md");
    const std::string text{std::istreambuf_iterator<char>(page), std::istreambuf_iterator<char>()};
    const std::string opening = "```python\n";
    const auto begin = text.find(opening);
    if (begin == std::string::npos) return {};
    return text.substr(begin + opening.size(), text.find("```", begin + opening.size()) - begin - opening.size());
}

TEST(H5pyTokens, DocumentedExampleIsRead) {
    if (!has_h5py()) GTEST_SKIP() << python() << " has no h5py";
    const std::string example = documented_example();
    ASSERT_NE(example.find("tokens.h5"), std::string::npos) << "no example in docs/formats.md";
    const TokenFolder folder;
    run_script(folder, example);
    const TokenFile file(folder / "tokens.h5", 0);
    EXPECT_EQ(file.vocabulary(), 32000);
    ASSERT_EQ(file.train().documents(), 2);
    EXPECT_EQ(file.train().read(0).tokens, (std::vector<std::int32_t>{1, 306, 763, 2}));
    EXPECT_EQ(file.train().read(0).is_target, (std::vector<std::uint8_t>{0, 0, 1, 1}));
    EXPECT_EQ(file.train().scan(32000, 0).targets, 7);
    EXPECT_EQ(file.validation(), nullptr);
}

TEST(H5pyTokens, OtherIntegerAndStringTypesAreRead) {
    if (!has_h5py()) GTEST_SKIP() << python() << " has no h5py";
    const TokenFolder folder;
    run_script(folder, R"(
import h5py, numpy as np
with h5py.File("t.h5", "w") as f:
    f.attrs["sherd.kind"] = np.bytes_("tokens")
    f.attrs["sherd.version"] = np.int8(1)
    f.attrs["vocab_size"] = np.uint16(40000)
    f["train/tokens"] = np.array([1, 2, 3], ">u2")
    f["train/doc_offsets"] = np.array([0, 3], np.int64)
    f.create_dataset("train/loss_mask", data=np.array([True, False, True]).astype("u1"), chunks=(2,), compression="gzip", shuffle=True)
    f.create_dataset("validation/tokens", shape=(0,), dtype="u4")
    f.create_dataset("validation/doc_offsets", data=np.zeros(1, "u8"))
)");
    const TokenFile file(folder / "t.h5", 0);
    EXPECT_EQ(file.vocabulary(), 40000);
    EXPECT_EQ(file.train().read(0).tokens, (std::vector<std::int32_t>{1, 2, 3}));
    EXPECT_EQ(file.train().read(0).is_target, (std::vector<std::uint8_t>{0, 0, 1}));
    EXPECT_EQ(file.validation(), nullptr);
}

}  // namespace
}  // namespace sherd
