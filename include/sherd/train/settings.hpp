#pragma once
/// The resolved deck: one struct a section, filled from the key table (app/keys.hpp) and from nowhere else.
#include "sherd/optim/schedule.hpp"
#include "sherd/sharding/shard_plan.hpp"
#include "sherd/tensor/dtype.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// Settings of a run; names and defaults are those of docs/deck.md. -1 or empty means "not given" where a field says so.
struct Settings {
    struct Run {
        std::string name = "run";
        std::string directory;  ///< "checkpoints/NAME" where not given
        std::uint64_t seed = 1234;
        std::int64_t steps = -1;      ///< optimizer steps; -1: by epochs
        double epochs = 1.0;          ///< used where steps is -1
        std::int64_t stop_step = -1;  ///< -1: none
        std::int64_t log_every = 1;
    } run;
    struct Model {
        std::string weights;
    } model;
    struct Data {
        std::string tokens;
        bool shuffle = true;
        std::int64_t max_sequence = 0;  ///< tokens; 0: no limit
    } data;
    struct Batch {
        std::int64_t sequences = 32;             ///< documents per optimizer step over all ranks; 0 where `tokens` is given
        std::int64_t tokens = 0;                 ///< tokens per optimizer step over all ranks; 0: by sequences
        std::vector<std::int64_t> micro_tokens;  ///< empty: auto; one value: all ranks; else one per rank
        std::vector<double> shares;              ///< empty: equal
    } batch;
    OptimizerSettings optimizer;
    struct Sharding {
        std::string strategy = "auto";
        std::int64_t node_size = 0;                                 ///< 0: auto
        std::vector<double> shares;                                 ///< empty: equal
        std::optional<Placement> parameters, gradients, optimizer;  ///< a row of one's own: all three, or none
        bool keep_gathered = false, prefetch = true;
    } sharding;
    struct Precision {
        std::optional<DType> compute;  ///< nothing: auto
        DType master = DType::f32, moments = DType::f32, gradients = DType::f32, reduce = DType::f32;
        bool tf32 = false;
    } precision;
    struct Checkpoint {
        std::int64_t every_steps = 0;  ///< 0: none by steps
        double every_seconds = 0;      ///< 0: none by time
        std::int64_t keep = 2;
        bool asynchronous = true;
        std::string resume = "auto";  ///< auto, never or a path
    } checkpoint;
    struct Evaluation {
        std::int64_t every = 0;      ///< optimizer steps; 0: only at step 0 and at the end
        std::int64_t documents = 0;  ///< 0: all of the validation group
    } evaluation;
    struct Communication {
        std::string backend = "auto";
        double hang_report_s = 20, timeout_s = 600;
    } communication;
    struct Device {
        std::string kind = "auto";
        std::int64_t threads = 0;                 ///< 0: cores of the node divided by its ranks
        std::vector<std::uint64_t> memory_limit;  ///< bytes; empty: none; one value: all ranks; else one per rank
        std::string attention = "auto";
    } device;
    std::map<std::string, std::string> nccl;

    /// The whole deck as INI text, every key with its resolved value: `--print-config`, `deck.ini` and the checkpoint's `deck`.
    std::string text;
};

}  // namespace sherd
