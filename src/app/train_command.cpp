#include "options.hpp"

#include "sherd/app/commands.hpp"
#include "sherd/app/deck.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/train/run.hpp"

namespace sherd {

int train_command(const std::vector<std::string>& arguments) {
    static const std::vector<Flag> flags{{"validate", "check deck and files, then stop"},
                                         {"print-config", "print the resolved deck, then stop"},
                                         {"allow-changes", "resume although fixed keys have changed"},
                                         {"print-keys", "print the table of keys as Markdown, then stop"},
                                         {"help", "print this, then stop"}};
    const RunOptions options = parse_run_options(arguments, flags);
    if (print_answer(options, "train", "Fine-tunes every parameter of a model. Runs alone or under mpirun or srun.", flags))
        return static_cast<int>(ExitCode::done);
    const auto changes = [](const std::string& before, const std::string& after) {
        std::vector<KeyChange> all;
        for (const DeckChange& c : deck_changes(before, after))
            all.push_back({c.full_name, c.before, c.after, c.on_resume == OnResume::fixed});
        return all;
    };
    return run_training(options.settings, {options.has("validate"), options.has("allow-changes"), changes});
}

}  // namespace sherd
