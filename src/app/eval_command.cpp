#include "options.hpp"

#include "sherd/app/commands.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/train/run.hpp"

namespace sherd {

int eval_command(const std::vector<std::string>& arguments) {
    static const std::vector<Flag> flags{{"print-config", "print the resolved deck, then stop"},
                                         {"print-keys", "print the table of keys as Markdown, then stop"},
                                         {"help", "print this, then stop"}};
    const RunOptions options = parse_run_options(arguments, flags);
    if (print_answer(options, "eval", "Evaluates a model on the validation documents; takes the decks of train.", flags))
        return static_cast<int>(ExitCode::done);
    return run_evaluation(options.settings);
}

}  // namespace sherd
