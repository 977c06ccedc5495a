// kvtwin completion: prints the completion script of a shell.
#include "cli/completion.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/one_of.hpp"
#include "cli/say.hpp"
#include "lab/experiment/keys.hpp"
#include "models/presets.hpp"

namespace kvtwin {
namespace {

enum class Values { none, any, words, keys };

struct OptionWords {
  std::vector<std::string> names;  // --set, -V
  std::string help;                // its beginning
  Values values = Values::none;
  std::string words;  // separated by blanks
};

struct CommandWords {
  std::string name, help;  // "trace info"; empty: the program
  std::vector<OptionWords> options;
  std::vector<std::pair<std::string, std::string>> commands;  // names and help of its own commands
};

// The first part of a sentence, on one line, without characters that mean something to a shell or to zsh's _arguments.
std::string short_help(const std::string& help) {
  constexpr std::size_t kLongest = 70;
  std::string text = help.substr(0, help.find_first_of(".;:(\n"));
  if (text.size() > kLongest) text = text.substr(0, text.rfind(' ', kLongest)) + " ...";
  std::erase_if(text, [](char c) { return std::string_view("'\"`$\\[]{}<>|&!*").find(c) != std::string_view::npos; });
  return text;
}

template <typename Words>
std::string joined(const Words& words) {
  std::string text;
  for (const auto& word : words) text.append(text.empty() ? "" : " ").append(word);
  return text;
}

// Returns the values of a key that has a choice; else nothing.
std::string choices_of(const ExperimentKey& key) {
  if (key.name == "model.name") return joined(model_preset_names());
  if (key.name == "hardware.name") return joined(hardware_preset_names());
  if (key.policy) return joined(policy_names(*key.policy));
  if (std::holds_alternative<bool>(key.fallback)) return "true false";
  return joined(key.choices);
}

OptionWords words_of(const CLI::Option& option) {
  OptionWords result;
  for (const std::string& name : option.get_snames()) result.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) result.names.push_back("--" + name);
  result.help = short_help(option.get_description());
  if (option.get_type_size() == 0) return result;
  result.values = Values::any;
  const std::string name = option.get_lnames().empty() ? "" : option.get_lnames().front();
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{'), close = type.find('}');
  if (open != std::string::npos && close != std::string::npos) {
    result.words = type.substr(open + 1, close - open - 1);
    std::ranges::replace(result.words, ',', ' ');
  } else if (name == "model" || name == "hardware") {
    result.words = joined(name == "model" ? model_preset_names() : hardware_preset_names());
  } else if (name == "set" || name == "vary") {
    result.values = Values::keys;
  }
  if (!result.words.empty()) result.values = Values::words;
  return result;
}

void add_commands(const CLI::App& app, const std::string& name, std::vector<CommandWords>& to) {
  CommandWords words{name, short_help(app.get_description()), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    words.options.push_back(words_of(*option));
  }
  const std::vector<const CLI::App*> inner = app.get_subcommands(nullptr);
  for (const CLI::App* one : inner) {
    words.commands.emplace_back(one->get_name(), short_help(one->get_description()));
  }
  to.push_back(std::move(words));
  for (const CLI::App* one : inner)
    add_commands(*one, name.empty() ? one->get_name() : name + " " + one->get_name(), to);
}

std::vector<CommandWords> commands_of(const CLI::App& program) {
  std::vector<CommandWords> commands;
  add_commands(program, "", commands);
  return commands;
}

std::string all_keys() {
  std::string keys;
  for (const ExperimentKey& key : experiment_keys()) keys.append(keys.empty() ? "" : " ").append(key.name).append("=");
  return keys;
}

// Lines "KEY) echo 'a b c' ;;" of a shell's case, of the keys with choices.
std::string key_choices() {
  std::string lines;
  for (const ExperimentKey& key : experiment_keys()) {
    const std::string choices = choices_of(key);
    if (!choices.empty()) lines += "    " + std::string(key.name) + ") echo '" + choices + "' ;;\n";
  }
  return lines;
}

constexpr const char* kIntro = "# Completion of kvtwin, printed by: kvtwin completion ";

}  // namespace

std::string bash_completion(const CLI::App& program) {
  std::string words, values, inner, branches;  // branches: commands with commands of their own
  for (const CommandWords& command : commands_of(program)) {
    std::string names;
    if (!command.commands.empty()) branches.append(branches.empty() ? "" : " | ").append("'" + command.name + "/'*");
    for (const auto& [name, help] : command.commands) {
      names += name + " ";
      inner += "      '" + command.name + "/" + name + "') command='" +
               (command.name.empty() ? name : command.name + " " + name) + "' ;;\n";
    }
    for (const OptionWords& option : command.options) {
      for (const std::string& name : option.names) {
        names += name + " ";
        const std::string at = "    '" + command.name + "/" + name + "') echo ";
        if (option.values == Values::words) values += at + "'" + option.words + "' ;;\n";
        if (option.values == Values::keys) values += at + "=keys ;;\n";
        if (option.values == Values::any) values += at + "=files ;;\n";
      }
    }
    words += "    '" + command.name + "') echo '" + names + "' ;;\n";
  }
  return std::string(kIntro) +
         "bash\n"
         "_kvtwin_words() {\n  case \"$1\" in\n" +
         words +
         "  esac\n}\n"
         "_kvtwin_values() {\n  case \"$1/$2\" in\n" +
         values +
         "  esac\n}\n"
         "_kvtwin_choices() {\n  case \"$1\" in\n" +
         key_choices() +
         "  esac\n}\n"
         "_kvtwin() {\n"
         "  local line=${COMP_LINE:0:COMP_POINT} command= current found word words\n"
         "  current=${line##* }\n"
         "  read -ra words <<<\"${line%\"$current\"}\"\n"
         "  for word in \"${words[@]:1}\"; do\n"
         "    case \"$command/$word\" in\n" +
         inner +
         "    esac\n  done\n"
         "  found=$(_kvtwin_values \"$command\" \"${words[-1]}\")\n"
         "  case \"$found\" in\n"
         "    '')\n"
         "      case \"$command/$current\" in\n"
         "        */-* | " +
         branches +
         ") ;;\n"
         "        *) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n"
         "      esac\n"
         "      found=$(_kvtwin_words \"$command\") ;;\n"
         "    =files) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n"
         "    =keys)\n"
         "      if [[ $current == *=* ]]; then\n"
         "        local key=${current%%=*}\n"
         "        COMPREPLY=($(compgen -W \"$(_kvtwin_choices \"$key\")\" -- \"${current#*=}\"))\n"
         "        [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=(\"${COMPREPLY[@]/#/$key=}\")\n"
         "        return\n"
         "      fi\n"
         "      compopt -o nospace 2>/dev/null\n"
         "      found='" +
         all_keys() +
         "' ;;\n"
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$found\" -- \"$current\"))\n"
         "}\n"
         "complete -o filenames -o bashdefault -F _kvtwin kvtwin\n";
}

std::string zsh_completion(const CLI::App& program) {
  std::string text = "#compdef kvtwin\n" + std::string(kIntro) +
                     "zsh\n"
                     "_kvtwin_choices() {\n  case \"$1\" in\n" +
                     key_choices() +
                     "  esac\n}\n"
                     "_kvtwin_keys() {\n"
                     "  if compset -P 1 '(#b)([^=]#)='; then\n"
                     "    compadd -- ${=\"$(_kvtwin_choices ${match[1]:-${IPREFIX%=}})\"}\n"
                     "  else\n"
                     "    compadd -S '' -- " +
                     all_keys() + "\n  fi\n}\n";
  std::string cases;
  for (const CommandWords& command : commands_of(program)) {
    std::string arguments;
    for (const OptionWords& option : command.options) {
      const std::string help = "[" + option.help + "]";
      std::string value;
      if (option.values == Values::words) value = ":value:(" + option.words + ")";
      if (option.values == Values::keys) value = ":key=value:_kvtwin_keys";
      if (option.values == Values::any) value = ":value:_files";
      for (const std::string& name : option.names) arguments += " \\\n        '*" + name + help + value + "'";
    }
    std::string inner;
    for (const auto& [name, help] : command.commands) inner += " '" + name + ":" + help + "'";
    cases += "    '" + command.name + "')\n";
    if (!inner.empty()) {
      cases += "      local -a inner=(" + inner + ")\n      _describe command inner\n";
    }
    cases += "      _arguments" + arguments + (inner.empty() ? " \\\n        '*:file:_files'" : "") + "\n      ;;\n";
  }
  std::string names;
  for (const CommandWords& command : commands_of(program)) names += " '" + command.name + "'";
  text += "_kvtwin() {\n  setopt localoptions extendedglob\n  local command= word\n  local -a known=(" + names +
          ")\n"
          "  for word in ${words[2,CURRENT-1]}; do\n"
          "    local longer=\"${command:+$command }$word\"\n"
          "    (( ${known[(Ie)$longer]} )) && command=$longer\n"
          "  done\n"
          "  case \"$command\" in\n" +
          cases +
          "  esac\n}\n"
          "if [[ $funcstack[1] == _kvtwin ]]; then _kvtwin \"$@\"; else compdef _kvtwin kvtwin; fi\n";
  return text;
}

std::string fish_completion(const CLI::App& program) {
  std::string text = std::string(kIntro) +
                     "fish\n"
                     "function __kvtwin_choices\n  switch (string replace -r '=.*' '' -- (commandline -ct))\n";
  for (const ExperimentKey& key : experiment_keys()) {
    const std::string choices = choices_of(key), name(key.name);
    if (!choices.empty()) text += "    case " + name + "\n      printf '" + name + "=%s\\n' " + choices + "\n";
  }
  text += "    case '*'\n      printf '%s\\n' " + all_keys() +
          "\n  end\nend\n"
          "complete -c kvtwin -n __fish_use_subcommand -f\n";
  for (const CommandWords& command : commands_of(program)) {
    std::string seen = "__fish_use_subcommand";
    if (!command.name.empty()) {
      seen.clear();
      std::string rest = command.name;
      for (std::size_t blank = rest.find(' '); !rest.empty(); blank = rest.find(' ')) {
        seen += (seen.empty() ? "" : "; and ") + std::string("__fish_seen_subcommand_from ") + rest.substr(0, blank);
        rest = blank == std::string::npos ? "" : rest.substr(blank + 1);
      }
    }
    const std::string begin = "complete -c kvtwin -n '" + seen + "'";
    for (const auto& [name, help] : command.commands) text += begin + " -f -a " + name + " -d '" + help + "'\n";
    for (const OptionWords& option : command.options) {
      text += begin;
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (option.values == Values::words) text += " -x -a '" + option.words + "'";
      if (option.values == Values::keys) text += " -x -a '(__kvtwin_choices)'";
      if (option.values == Values::any) text += " -r";
      text += " -d '" + option.help + "'\n";
    }
  }
  return text;
}

void add_completion(CLI::App& program) {
  static std::string shell;
  CLI::App* command = program.add_subcommand("completion", "Print the completion script of a shell");
  command->footer(
      "Example: source <(kvtwin completion bash)                                  # in ~/.bashrc\n"
      "         source <(kvtwin completion zsh)                                   # in ~/.zshrc, after compinit\n"
      "         kvtwin completion fish > ~/.config/fish/completions/kvtwin.fish");
  command->add_option("shell", shell, "bash, zsh or fish")->required()->check(is_one_of({"bash", "zsh", "fish"}));
  command->callback([&program] {
    print(shell == "bash"  ? bash_completion(program)
          : shell == "zsh" ? zsh_completion(program)
                           : fish_completion(program));
  });
}

}  // namespace kvtwin
