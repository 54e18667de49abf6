#pragma once
/// The checkpoints of a run's directory: step-NNNNNNNN folders and the link `latest`.
#include "sherd/checkpoint/manifest.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sherd {

/// "step-00001000"
std::string set_name(std::int64_t step);

/// A whole set and what it says of itself.
struct FoundSet {
    std::filesystem::path folder;
    Manifest manifest;
};

/// Folders named like sets, newest first, whole or not.
std::vector<std::filesystem::path> list_sets(const std::filesystem::path& run_directory);

/// The newest whole set, or nothing where there is no set at all. Damaged newer ones, and a link `latest` that is missing, dangles or
/// points elsewhere, are named in notices. Throws InputError where sets exist and none is whole.
std::optional<FoundSet> find_newest_set(const std::filesystem::path& run_directory);

/// The set that a user names: its folder, the link to it, its manifest.h5, or a run's directory (then its newest whole set).
/// Throws InputError where there is none.
FoundSet find_named_set(const std::filesystem::path& path);

/// Whether the path looks like something find_named_set takes.
bool names_a_set(const std::filesystem::path& path);

/// Lets `latest` point to that set (relative). What stands in the way and is no link is set aside.
void point_latest(const std::filesystem::path& run_directory, std::int64_t step);

/// Renames sets of steps after `current_step` to step-N.set-aside: a run that was resumed before them has taken another way. Says so.
void set_aside_newer(const std::filesystem::path& run_directory, std::int64_t current_step);

/// Removes whole sets beyond the newest `keep`, never the one of `current_step`, and abandoned temporaries of earlier
/// jobs. What cannot be removed is a warning: the new set is safe already.
void prune_sets(const std::filesystem::path& run_directory, std::int64_t keep, std::int64_t current_step);

}  // namespace sherd
