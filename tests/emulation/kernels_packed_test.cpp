/// What stands between packed documents and cuDNN: lists of where they start, statistics by rows and by heads, zeros in surplus rows.
#include "backend/cuda/packed.hpp"
#include "kernels_testing.hpp"

namespace sherd::cuda::testing {
namespace {

template <class T>
std::vector<T> as(const Bytes& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

TEST(PackedLists, AreOfTheDocumentsAndEmptyBeyond) {
    const std::vector<std::int32_t> offsets{0, 5, 5, 12, 300};
    const AttentionShape shape{6, 2, 24, 1.0f};
    for (const std::int64_t count : {4, 8, 300}) {
        const auto n = static_cast<std::size_t>(count);
        const auto lists = in_all_orders([&](Stream& stream) {
            const Memory queries(stream, (n + 1) * 8), keys(stream, (n + 1) * 8), statistics(stream, (n + 1) * 8), lengths(stream, n * 4);
            const Integers at(stream, offsets);
            const auto longs = [](const Memory& m) { return reinterpret_cast<std::int64_t*>(m.data()); };
            packed_lists(stream, {longs(queries), longs(keys), longs(statistics), reinterpret_cast<std::int32_t*>(lengths.data())},
                         {at.data(), 4, 288}, count, shape);
            return std::vector<Bytes>{queries.read(), keys.read(), statistics.read(), lengths.read()};
        });
        std::vector<std::int64_t> queries, keys, statistics;
        std::vector<std::int32_t> lengths;
        for (std::size_t i = 0; i <= n; ++i) {
            const std::int64_t row = offsets[std::min<std::size_t>(i, 4)];
            queries.push_back(row * 6 * 24);
            keys.push_back(row * 2 * 24);
            statistics.push_back(row * 6);
            if (i < n) lengths.push_back(i < 4 ? offsets[i + 1] - offsets[i] : 0);
        }
        EXPECT_EQ(as<std::int64_t>(lists[0]), queries);
        EXPECT_EQ(as<std::int64_t>(lists[1]), keys);
        EXPECT_EQ(as<std::int64_t>(lists[2]), statistics);
        EXPECT_EQ(as<std::int32_t>(lists[3]), lengths);
    }
}

TEST(Statistics, GoByHeadsAndBackByRows) {
    for (const auto& [rows, heads, used] : {std::array<std::int64_t, 3>{1, 1, 1}, {33, 7, 30}, {70, 40, 64}, {31, 64, 0}}) {
        const Values values = random_values(rows * heads, 3);
        const auto found = in_all_orders([&, rows = rows, heads = heads, used = used](Stream& stream) {
            const Matrix by_rows(stream, rows, heads, DType::f32, values), by_heads(stream, heads, rows, DType::f32),
                again(stream, rows, heads, DType::f32);
            const Integers offsets(stream, {0, static_cast<std::int32_t>(used)});
            statistics_by_heads(stream, by_heads.floats(), by_rows.floats(), rows, heads, {offsets.data(), 1, used});
            statistics_by_rows(stream, again.floats(), by_heads.floats(), rows, heads);
            return std::vector<Bytes>{by_heads.read(), again.read()};
        });
        const Values lse = to_values(found[0], DType::f32), again = to_values(found[1], DType::f32);
        for (std::int64_t row = 0; row < rows; ++row) {
            for (std::int64_t head = 0; head < heads; ++head) {
                const auto at = static_cast<std::size_t>(row * heads + head);
                ASSERT_EQ(lse[static_cast<std::size_t>(head * rows + row)], row < used ? values[at] : 0.0) << row << ", " << head;
                ASSERT_EQ(again[at], row < used ? values[at] : 0.0) << row << ", " << head;
            }
        }
    }
}

TEST(SurplusRows, BecomeZeroAndNoOther) {
    for (const auto& [rows, used] : {std::array<std::int64_t, 2>{1, 0}, {40, 37}, {40, 40}, {9000, 11}}) {
        const auto found = in_all_orders([&, rows = rows, used = used](Stream& stream) {
            const Matrix a(stream, rows, 48, DType::bf16), b(stream, rows, 16, DType::bf16), c(stream, rows, 16, DType::bf16),
                alone(stream, rows, 8, DType::f16);
            const Integers offsets(stream, {0, 0, static_cast<std::int32_t>(used)});
            const Documents documents{offsets.data(), 2, used};
            zero_surplus(stream, documents, a, b, c);
            zero_surplus(stream, documents, alone);
            return std::vector<Bytes>{a.read(), b.read(), c.read(), alone.read()};
        });
        for (const Bytes& bytes : found) {
            const std::size_t kept = bytes.size() / static_cast<std::size_t>(rows) * static_cast<std::size_t>(used);
            Bytes expected(bytes.size(), 0);
            std::fill_n(expected.begin(), kept, static_cast<unsigned char>(0xff));
            EXPECT_EQ(bytes, expected) << rows << " rows, " << used << " used";
        }
    }
}

}  // namespace
}  // namespace sherd::cuda::testing
