#include "options.hpp"

#include "sherd/app/keys.hpp"
#include "sherd/runtime/log.hpp"

#include <fmt/format.h>

namespace sherd {

namespace {

constexpr std::size_t help_width = 100;

/// Breaks a sentence into lines of help_width characters, each behind `indent` blanks.
std::string wrapped(const std::string& sentence, std::size_t indent) {
    std::string text(indent, ' ');
    std::size_t column = indent;
    for (std::size_t at = 0; at < sentence.size();) {
        const std::size_t end = std::min(sentence.find(' ', at), sentence.size());
        if (column > indent && column + 1 + (end - at) > help_width) {
            text += '\n' + std::string(indent, ' ');
            column = indent;
        } else if (column > indent) {
            text += ' ';
            ++column;
        }
        text += sentence.substr(at, end - at);
        column += end - at;
        at = end + 1;
    }
    return text + '\n';
}

std::string shown_default(const Key& key) {
    return key.required() ? "required" : "default " + key.default_text;
}

}  // namespace

std::string run_help(const std::string& command, const std::string& summary, const std::vector<Flag>& flags) {
    std::string text = fmt::format("usage: sherd {} [--config DECK] [--section.key=value ...]\n\n{}\n", command, wrapped(summary, 0));
    text += fmt::format("  --{:<17} {}\n", "config DECK", "INI file with the keys below; keys on the command line win");
    for (const Flag& flag : flags) text += fmt::format("  --{:<17} {}\n", flag.name, flag.help);
    text += "\nKeys, each also --section.key=value:\n";
    for (const Section& section : deck_sections()) {
        text += fmt::format("\n[{}]  {}\n", section.name, section.help);
        for (const Key& key : section.keys) {
            text += fmt::format("  {:<19} {}  ({})\n", key.name, key.value.allowed, shown_default(key));
            text += wrapped(key.help, 6);
        }
    }
    return text;
}

bool print_answer(const RunOptions& options, const std::string& command, const std::string& summary, const std::vector<Flag>& flags) {
    std::string text;
    if (options.has("help"))
        text = run_help(command, summary, flags);
    else if (options.has("print-keys"))
        text = keys_as_markdown();
    else if (options.has("print-config"))
        text = options.settings.text;
    else
        return false;
    text.pop_back();  // log::line ends the last line
    log::line(text);
    return true;
}

std::string keys_as_markdown() {
    std::string text;
    for (const Section& section : deck_sections()) {
        text += fmt::format("### [{}]: {}\n\n", section.name, section.help);
        if (section.keys.empty()) continue;
        text += "| key | default | takes | on resume | meaning |\n|---|---|---|---|---|\n";
        for (const Key& key : section.keys) {
            const char* resume = key.on_resume == OnResume::may_change ? "may change"
                                 : key.on_resume == OnResume::fixed    ? "fixed"
                                                                       : "by content";
            text += fmt::format("| `{}` | {} | {} | {} | {} |\n", key.name, key.required() ? "required" : '`' + key.default_text + '`',
                                key.value.allowed, resume, key.help);
        }
        text += '\n';
    }
    return text;
}

}  // namespace sherd
