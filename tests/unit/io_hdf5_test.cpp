#include "io/hdf5_handle.hpp"
#include "io_scratch.hpp"

#include "sherd/io/hdf5.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <unistd.h>

using namespace sherd;
using io::HdfFile;
using sherd::testing::expect_error;
using sherd::testing::Scratch;
using sherd::testing::write_bytes;
namespace fs = std::filesystem;
using Shape = std::vector<std::int64_t>;

namespace {
/// Runs a Python text with numpy and h5py in the scratch folder and returns what it prints.
std::string python(const Scratch& scratch, const std::string& text) {
    write_bytes(scratch / "script.py", "import h5py, numpy as np, os\n" + text);
    const std::string command = fmt::format("cd '{}' && /usr/bin/python3 script.py 2>&1", scratch.path().string());
    std::string output;
    FILE* pipe = ::popen(command.c_str(), "r");
    char buffer[4096];
    while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) output += buffer;
    if (pipe == nullptr || ::pclose(pipe) != 0) output = "FAILED: " + output;
    return output;
}

std::vector<float> ramp(std::size_t n, float first = 0) {
    std::vector<float> values(n);
    std::iota(values.begin(), values.end(), first);
    return values;
}
}  // namespace

TEST(FlatBoxes, CoverTheIntervalInOrderWithFewBoxes) {
    const Shape shape{3, 4, 5};
    for (std::int64_t begin = 0; begin <= 60; ++begin)
        for (std::int64_t end = begin; end <= 60; ++end) {
            std::int64_t at = begin;
            const auto boxes = io::detail::flat_boxes(shape, begin, end - begin);
            ASSERT_LE(boxes.size(), 2 * shape.size() - 1);
            for (const auto& box : boxes)
                for (hsize_t i = 0; i < box.count[0]; ++i)
                    for (hsize_t j = 0; j < box.count[1]; ++j)
                        for (hsize_t k = 0; k < box.count[2]; ++k, ++at)
                            ASSERT_EQ(static_cast<std::int64_t>(((box.start[0] + i) * 4 + box.start[1] + j) * 5 + box.start[2] + k), at);
            ASSERT_EQ(at, end);
        }
}

TEST(Hdf5, EveryTypeComesBack) {
    const Scratch scratch;
    const std::vector<unsigned char> bytes = {0x01, 0x80, 0x7f, 0xff, 0x12, 0x34, 0x56, 0x78,
                                              0x9a, 0xbc, 0xde, 0xf0, 0x11, 0x22, 0x33, 0x44};
    HdfFile file = HdfFile::create(scratch / "f.h5");
    const std::vector<DType> types{DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32,
                                   DType::i16, DType::i8,  DType::u64, DType::u32,  DType::u16, DType::u8};
    for (const DType type : types) {
        const std::string name = "group/" + std::string(name_of(type));
        const auto n = static_cast<std::int64_t>(bytes.size() / size_of(type));
        file.create_dataset(name, {n}, type);
        file.write(name, 0, n, bytes.data());
    }
    file.close();
    const HdfFile back = HdfFile::open(scratch / "f.h5");
    EXPECT_EQ(back.members("group").size(), types.size());
    for (const DType type : types) {
        const std::string name = "group/" + std::string(name_of(type));
        std::vector<unsigned char> found(bytes.size());
        const auto n = static_cast<std::int64_t>(bytes.size() / size_of(type));
        const io::DatasetInfo info = back.info(name);
        EXPECT_EQ(info.dtype, type);
        EXPECT_EQ(info.shape, Shape{n});
        ASSERT_TRUE(info.offset.has_value());
        back.read(name, 0, n, found.data());
        EXPECT_EQ(found, bytes) << name;
        std::ifstream raw(scratch / "f.h5", std::ios::binary);
        raw.seekg(static_cast<std::streamoff>(*info.offset));
        raw.read(reinterpret_cast<char*>(found.data()), static_cast<std::streamsize>(found.size()));
        EXPECT_EQ(found, bytes) << name << " by its offset";
    }
}

TEST(Hdf5, H5pyReadsBfloat16AndHalfAsTheirValues) {
    const Scratch scratch;
    HdfFile file = HdfFile::create(scratch / "f.h5");
    const std::uint16_t bf16[] = {0x3f80, 0xc000, 0x4049, 0x0001}, f16[] = {0x3c00, 0xc000, 0x4248, 0x0001};
    file.create_dataset("b", {4}, DType::bf16);
    file.write("b", 0, 4, bf16);
    file.create_dataset("h", {4}, DType::f16);
    file.write("h", 0, 4, f16);
    file.close();
    EXPECT_EQ(python(scratch,
                     "f = h5py.File('f.h5')\nprint(f['h'].dtype, *f['h'][:])\n"
                     "t = h5py.h5t.IEEE_F32LE\nx = np.empty(4, 'f4')\nf['b'].id.read(h5py.h5s.ALL, h5py.h5s.ALL, x, t)\n"
                     "print(*x[:3], x[3] == 2.0**-133)\n"),
              "float16 1.0 -2.0 3.14 6e-08\n1.0 -2.0 3.140625 True\n");
}

TEST(Hdf5, ReadsAndWritesSlicesOfManyDimensions) {
    const Scratch scratch;
    HdfFile file = HdfFile::create(scratch / "f.h5");
    file.create_dataset("a/x", {3, 4, 5}, DType::f32);
    const auto values = ramp(60);
    file.write("a/x", 0, 17, values.data());
    file.write("a/x", 17, 43, values.data() + 17);
    std::vector<float> part(31);
    file.read("a/x", 7, 31, part.data());
    EXPECT_EQ(part, ramp(31, 7));
    file.read("a/x", 60, 0, part.data());
    expect_error([&] { file.read("a/x", 50, 11, part.data()); }, "a/x", "elements 50 to 61", "it has 60");
    expect_error([&] { file.read("a/y", 0, 1, part.data()); }, "f.h5", "a/y");
    file.create_dataset("scalar", {}, DType::f32);
    file.write("scalar", 0, 1, values.data() + 5);
    file.read("scalar", 0, 1, part.data());
    EXPECT_EQ(part[0], 5);
    file.create_dataset("empty", {0, 3}, DType::f32);
    file.read("empty", 0, 0, part.data());
    EXPECT_TRUE(file.exists("a/x"));
    EXPECT_TRUE(file.exists("a"));
    EXPECT_FALSE(file.exists("a/z"));
    EXPECT_FALSE(file.exists("z/a"));
    EXPECT_EQ(file.members("/", true), (std::vector<std::string>{"a/x", "empty", "scalar"}));
}

TEST(Hdf5, PiecesAboveTheTransferLimitComeBack) {
    const Scratch scratch;
    HdfFile file = HdfFile::create(scratch / "f.h5");
    const auto values = ramp(5'000'011);  // 20 MB, prime
    file.create_dataset("x", {5'000'011}, DType::f32);
    file.write("x", 0, 5'000'011, values.data());
    std::vector<float> back(values.size());
    file.read("x", 0, 5'000'011, back.data());
    EXPECT_EQ(back, values);
}

TEST(Hdf5, ReadsAttributesOfEveryWidthAndKind) {
    const Scratch scratch;
    EXPECT_EQ(python(scratch,
                     "f = h5py.File('f.h5', 'w')\n"
                     "for t in 'u1 i1 <u2 >i2 <i4 >u4 <i8 >u8'.split(): f.attrs[t] = np.array(7, t)\n"
                     "f.attrs['one'] = np.array([-3], 'i1')\nf.attrs['huge'] = np.uint64(2**63)\nf.attrs['float'] = 1.5\n"
                     "f.attrs['two'] = np.array([1, 2])\nf.attrs['var'] = 'h\\u00e9llo'\nf.attrs['fixed'] = np.bytes_(b'abc')\n"
                     "f.attrs.create('padded', b'ab', dtype='S9')\nf.attrs['empty'] = ''\nf.attrs['none'] = h5py.Empty('S1')\n"
                     "f['config'] = 'x' * 100000\nf['bytes'] = np.frombuffer(b'xyz', np.uint8)\n"
                     "f.create_dataset('g/d', data=[1]).attrs['k'] = 9\nf['g'].attrs['s'] = ['one']\n"),
              "");
    const HdfFile file = HdfFile::open(scratch / "f.h5");
    for (const char* name : {"u1", "i1", "<u2", ">i2", "<i4", ">u4", "<i8", ">u8"}) EXPECT_EQ(file.integer_attribute("/", name), 7) << name;
    EXPECT_EQ(file.integer_attribute("/", "one"), -3);
    EXPECT_EQ(file.integer_attribute("g/d", "k"), 9);
    EXPECT_EQ(file.integer_attribute("/", "absent"), std::nullopt);
    expect_error([&] { file.integer_attribute("/", "huge"); }, "huge", "9223372036854775808");
    expect_error([&] { file.integer_attribute("/", "float"); }, "float", "one integer");
    expect_error([&] { file.integer_attribute("/", "two"); }, "two", "one integer");
    expect_error([&] { file.string_attribute("/", "one"); }, "one");
    EXPECT_EQ(file.string_attribute("/", "var"), "h\xc3\xa9llo");
    EXPECT_EQ(file.string_attribute("/", "fixed"), "abc");
    EXPECT_EQ(file.string_attribute("/", "padded"), "ab");
    EXPECT_EQ(file.string_attribute("/", "empty"), "");
    EXPECT_EQ(file.string_attribute("/", "none"), "");
    EXPECT_EQ(file.string_attribute("g", "s"), "one");
    EXPECT_EQ(file.string_attribute("/", "config"), std::string(100000, 'x'));
    EXPECT_EQ(file.string_attribute("/", "bytes"), "xyz");
    EXPECT_EQ(file.string_attribute("/", "absent"), std::nullopt);
}

TEST(Hdf5, WritesAttributesThatH5pyReads) {
    const Scratch scratch;
    HdfFile file = HdfFile::create(scratch / "f.h5");
    file.create_group("a/b");
    file.set_attribute("/", "n", std::int64_t{1});
    file.set_attribute("/", "n", std::int64_t{-5});
    file.set_attribute("a/b", "s", std::string(200'000, 'y') + "\xc3\xa9");
    file.close();
    EXPECT_EQ(python(scratch,
                     "f = h5py.File('f.h5')\ns = f['a/b'].attrs['s']\nprint(f.attrs['n'], type(s).__name__, len(s), s[-1] == '\\u00e9')\n"),
              "-5 str 200001 True\n");
}

TEST(Hdf5, KnowsLayoutsAndForeignTypes) {
    const Scratch scratch;
    EXPECT_EQ(
        python(scratch,
               "f = h5py.File('f.h5', 'w')\nx = np.arange(1000, dtype='u4')\nf.create_dataset('big', data=x.astype('>u4'))\n"
               "f.create_dataset('zip', data=x, chunks=(250,), compression='gzip')\nf.create_dataset('chunk', data=x, chunks=(100,))\n"
               "f['bool'] = np.array([True, False])\nf['str'] = 'text'\nf['complex'] = np.ones(2, 'c8')\n"
               "f['half'] = np.array([1.5], '>f2')\n"),
        "");
    const HdfFile file = HdfFile::open(scratch / "f.h5");
    std::vector<std::uint32_t> x(1000), expected(1000);
    std::iota(expected.begin(), expected.end(), 0u);
    for (const char* name : {"big", "zip", "chunk"}) {
        file.read(name, 0, 1000, x.data());
        EXPECT_EQ(x, expected) << name;
        EXPECT_EQ(file.info(name).offset, std::nullopt) << name;
    }
    EXPECT_EQ(file.info("zip").chunk_bytes, 1000u);
    EXPECT_TRUE(file.info("zip").filtered);
    EXPECT_EQ(file.info("chunk").chunk_bytes, 400u);
    EXPECT_FALSE(file.info("chunk").filtered);
    EXPECT_EQ(file.info("bool").dtype, DType::boolean);
    std::uint16_t half = 0;
    file.read("half", 0, 1, &half);
    EXPECT_EQ(half, 0x3e00);
    expect_error([&] { file.info("str"); }, "str", "strings");
    expect_error([&] { file.info("complex"); }, "complex", "compound");
    io::set_chunk_cache_bytes(1 << 20);
    file.read("zip", 333, 10, x.data());
    io::set_chunk_cache_bytes(0);
    EXPECT_EQ(x[0], 333u);
}

TEST(Hdf5, RefusesWhatIsNoWholeHdf5File) {
    const Scratch scratch;
    write_bytes(scratch / "text", "this is no HDF5 file, whatever its name says");
    expect_error([&] { HdfFile::open(scratch / "text"); }, "text", "no HDF5 file");
    write_bytes(scratch / "nothing", "");
    expect_error([&] { HdfFile::open(scratch / "nothing"); }, "0 bytes");
    expect_error([&] { HdfFile::open(scratch / "absent"); }, "does not exist");
    expect_error([&] { HdfFile::open(scratch.path()); }, "folder");
    HdfFile file = HdfFile::create(scratch / "f.h5");
    file.create_dataset("x", {1000}, DType::f32);
    file.write("x", 0, 1000, ramp(1000).data());
    file.set_attribute("/", "sherd.kind", std::string("weights"));
    file.close();
    expect_error([&] { HdfFile::create(scratch / "f.h5"); }, "f.h5", "File exists");
    expect_error([&] { io::open_kind(scratch / "f.h5", "tokens"); }, "'weights'", "'tokens'");
    expect_error([&] { io::open_kind(scratch / "f.h5", "weights"); }, "sherd.version");
    for (const std::uintmax_t size : {4000u, 2000u, 200u, 20u}) {
        fs::resize_file(scratch / "f.h5", size);
        expect_error([&] { HdfFile::open(scratch / "f.h5"); }, "f.h5");
    }
}

TEST(Hdf5, KindAndVersionAreChecked) {
    const Scratch scratch;
    EXPECT_EQ(python(scratch,
                     "f = h5py.File('v2.h5', 'w')\nf.attrs['sherd.kind'] = 'weights'\nf.attrs['sherd.version'] = 2\n"
                     "h5py.File('none.h5', 'w')\n"),
              "");
    expect_error([&] { io::open_kind(scratch / "v2.h5", "weights"); }, "version' 2", "version 1");
    expect_error([&] { io::open_kind(scratch / "none.h5", "weights"); }, "no attribute 'sherd.kind'");
}

TEST(Hdf5, AFileHeldByAWriterIsReadableWhateverTheVariableSays) {
    const Scratch scratch;
    // the writer says when it holds the file and waits for its standard input to end
    write_bytes(scratch / "hold.py",
                "import h5py, sys\nf = h5py.File('f.h5', 'a')\nf['x'] = 5\nf.flush()\nopen('ready', 'w')\nsys.stdin.read()\n");
    FILE* holder = ::popen(fmt::format("cd '{}' && exec /usr/bin/python3 hold.py", scratch.path().string()).c_str(), "w");
    ASSERT_NE(holder, nullptr);
    for (int i = 0; i < 200 && !fs::exists(scratch / "ready"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_TRUE(fs::exists(scratch / "ready"));
    ::setenv("HDF5_USE_FILE_LOCKING", "TRUE", 1);
    std::int64_t x = 0;
    EXPECT_NO_THROW(HdfFile::open(scratch / "f.h5").read("x", 0, 1, &x));
    EXPECT_EQ(x, 5);
    ::pclose(holder);
}

TEST(Hdf5, ManyThreadsMayRead) {
    const Scratch scratch;
    HdfFile file = HdfFile::create(scratch / "f.h5");
    file.create_dataset("x", {100, 100}, DType::f32);
    file.write("x", 0, 10000, ramp(10000).data());
    file.close();
    std::vector<std::thread> threads;
    std::vector<int> good(4);
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            const HdfFile mine = HdfFile::open(scratch / "f.h5");
            std::vector<float> row(300);
            for (int i = 0; i < 50; ++i) {
                mine.read("x", 37 * i + t, 300, row.data());
                good[static_cast<std::size_t>(t)] += row == ramp(300, static_cast<float>(37 * i + t));
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(good, (std::vector<int>{50, 50, 50, 50}));
}

TEST(Hdf5Virtual, ShowsWholeTensorsAndNanWhereAPieceIsMissing) {
    const Scratch scratch;
    for (int rank = 0; rank < 3; ++rank) {
        HdfFile part = HdfFile::create(scratch / fmt::format("rank-{:05}.h5", rank));
        const std::int64_t count = rank == 0 ? 7 : 23;
        part.create_dataset("p/x", {count}, DType::f32);
        part.write("p/x", 0, count, ramp(static_cast<std::size_t>(count), rank == 0 ? 0 : rank == 1 ? 7 : 30).data());
        part.create_dataset("p/b", {count}, DType::bf16);
        const std::vector<std::uint16_t> ones(static_cast<std::size_t>(count), 0x3f80);
        part.write("p/b", 0, count, ones.data());
        part.close();
    }
    HdfFile whole = HdfFile::create(scratch / "manifest.h5");
    for (const auto& [name, type] : {std::pair("x", DType::f32), std::pair("b", DType::bf16)}) {
        const std::string source = std::string("p/") + name;
        whole.create_virtual(std::string("parameters/") + name, {3, 4, 5}, type,
                             {{0, 7, "rank-00000.h5", source}, {7, 23, "rank-00001.h5", source}, {30, 23, "rank-00002.h5", source}});
    }
    whole.close();
    const std::string script = "d = '" + scratch.path().string() + "/'\n" + R"(
f = h5py.File(d + 'manifest.h5')
x = f['parameters/x'][:].ravel()
b = np.empty((3, 4, 5), 'f4')
f['parameters/b'].id.read(h5py.h5s.ALL, h5py.h5s.ALL, b, h5py.h5t.NATIVE_FLOAT)
n = int(np.isfinite(x).sum())
print(f['parameters/x'].shape, n, np.array_equal(x[:n], np.arange(n)), np.isnan(x[n:]).all(), (b.ravel()[:n] == 1).all(), np.isnan(b.ravel()[n:]).all())
)";
    EXPECT_EQ(python(scratch, "os.chdir('/')\n" + script), "(3, 4, 5) 53 True True True True\n");
    const HdfFile back = HdfFile::open(scratch / "manifest.h5");
    std::vector<float> middle(40);
    back.read("parameters/x", 3, 40, middle.data());
    EXPECT_EQ(middle, ramp(40, 3));
    EXPECT_EQ(back.info("parameters/x").offset, std::nullopt);
    fs::remove(scratch / "rank-00002.h5");
    EXPECT_EQ(python(scratch, script), "(3, 4, 5) 30 True True True True\n");
}

TEST(Hdf5, ALinkIsTheSameBytesUnderAnotherName) {
    const Scratch scratch;
    const auto values = ramp(5000);
    {
        HdfFile file = HdfFile::create(scratch / "links.h5");
        file.create_dataset("model/first", {50, 100}, DType::f32);
        file.write("model/first", 0, 5000, values.data());
        file.link("model/second", "model/first");
        file.link("other/third", "model/first");
        expect_error<InputError>([&] { file.link("model/first", "model/second"); }, "links.h5", "model/first");
        expect_error<InputError>([&] { file.link("model/fourth", "model/none"); }, "links.h5", "model/fourth");
        file.close();
    }
    EXPECT_LT(fs::file_size(scratch / "links.h5"), 30000u);
    const HdfFile file = HdfFile::open(scratch / "links.h5");
    EXPECT_EQ(file.members("model"), (std::vector<std::string>{"first", "second"}));
    for (const char* name : {"model/second", "other/third"}) {
        std::vector<float> found(5000);
        file.read(name, 0, 5000, found.data());
        EXPECT_EQ(found, values) << name;
        EXPECT_EQ(file.info(name).shape, (Shape{50, 100})) << name;
        EXPECT_EQ(file.info(name).offset, file.info("model/first").offset) << name;
    }
}
