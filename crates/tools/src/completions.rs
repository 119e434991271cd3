//! `galatea completions SHELL`: completions generated from the command and flag tables.

use std::fmt::Write;

use crate::commands::{COMMANDS, Command, OperandKind};

/// A supported shell.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Shell {
    /// Bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// Fish.
    Fish,
}

impl Shell {
    /// Finds the shell with this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the shell isn't supported.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "bash" => Ok(Self::Bash),
            "zsh" => Ok(Self::Zsh),
            "fish" => Ok(Self::Fish),
            other => {
                Err(format!("there are completions for bash, zsh and fish, not for '{other}'"))
            }
        }
    }

    /// Generates the completion script for all commands and these server flags.
    #[must_use]
    pub fn completion_script(self, flags: &[ServerFlag]) -> String {
        match self {
            Self::Bash => bash(flags),
            Self::Zsh => zsh(flags),
            Self::Fish => fish(flags),
        }
    }
}

/// A server flag.
#[derive(Copy, Clone, Debug)]
pub struct ServerFlag {
    /// The name, without its dashes.
    pub name: &'static str,
    /// The placeholder for the value; `None` for a switch.
    pub argument: Option<&'static str>,
    /// The flag's effect.
    pub help: &'static str,
}

/// An option of a command or of the server.
struct CompletionOption {
    name: &'static str,
    takes_value: bool,
    /// True if the value is a path.
    is_path: bool,
    help: String,
}

/// The options of a command or of the server.
fn choices(command: Option<&Command>, flags: &[ServerFlag]) -> Vec<CompletionOption> {
    let own = command.map_or(&[][..], |command| command.options);
    let mut choices: Vec<CompletionOption> =
        own.iter().map(|option| choice(option.name, option.argument, option.help)).collect();
    if command.is_none_or(|command| command.takes_flags) {
        choices.extend(
            flags.iter().map(|ServerFlag { name, argument, help }| choice(name, *argument, help)),
        );
    }
    choices.push(choice("help", None, "Print the help."));
    choices
}

fn choice(name: &'static str, argument: Option<&'static str>, help: &str) -> CompletionOption {
    let is_path = ["directory", "repository", "store", "file", "cert", "key", "library"]
        .iter()
        .any(|end| name.ends_with(end));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = help.split_once(". ").map_or(help.as_str(), |(first, _)| first);
    CompletionOption {
        name,
        takes_value: argument.is_some(),
        is_path: argument.is_some() && is_path,
        help: first.trim_end_matches('.').to_owned(),
    }
}

/// The first words of all commands.
fn first_words() -> Vec<&'static str> {
    let mut words: Vec<&str> =
        COMMANDS.iter().filter_map(|one| one.name.split(' ').next()).collect();
    words.dedup();
    words
}

/// The first words of the commands that have two words, each with its second words.
fn second_words() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for (first, second) in COMMANDS.iter().filter_map(|one| one.name.split_once(' ')) {
        match found.last_mut() {
            Some((last, seconds)) if *last == first => seconds.push(second),
            Some(_) | None => found.push((first, vec![second])),
        }
    }
    found
}

/// The first words of the commands that have two words, as a pattern of bash and zsh.
fn first_of_two() -> String {
    second_words().iter().map(|(first, _)| *first).collect::<Vec<_>>().join("|")
}

fn bash(flags: &[ServerFlag]) -> String {
    let names = |choices: &[CompletionOption]| {
        choices.iter().map(|one| format!("--{}", one.name)).collect::<Vec<_>>().join(" ")
    };
    let pattern = |choices: &[CompletionOption], wanted: fn(&CompletionOption) -> bool| {
        let found = choices.iter().filter(|one| wanted(one));
        found.map(|one| format!("--{}", one.name)).collect::<Vec<_>>().join("|")
    };
    let all: Vec<CompletionOption> = COMMANDS
        .iter()
        .flat_map(|one| choices(Some(one), flags))
        .chain(choices(None, flags))
        .collect();
    let mut cases = String::new();
    for command in &COMMANDS {
        let operands = match command.operands {
            OperandKind::Paths => String::from("paths=1"),
            OperandKind::Words(words) => format!("words=\"{}\"", words.join(" ")),
            OperandKind::Text => String::from(":"),
        };
        let options = names(&choices(Some(command), flags));
        let pattern = command.name.replace(' ', "\\ ");
        let _ = writeln!(cases, "        {pattern}) options=\"{options}\"; {operands} ;;");
    }
    for (first, seconds) in second_words() {
        let seconds = seconds.join(" ");
        let _ = writeln!(cases, "        {first}|{first}\\ *) words=\"{seconds}\" ;;");
    }
    BASH.replace("@PATHS@", &pattern(&all, |one| one.is_path))
        .replace("@VALUES@", &pattern(&all, |one| one.takes_value && !one.is_path))
        .replace("@CASES@", cases.trim_end())
        .replace("@COMMANDS@", &first_words().join(" "))
        .replace("@FIRST_OF_TWO@", &first_of_two())
        .replace("@FLAGS@", &names(&choices(None, flags)))
}

const BASH: &str = r#"# Completions of galatea for bash: source this file, or put it into
# ~/.local/share/bash-completion/completions/galatea
_galatea() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
    local name="" options="" words="" paths="" word index
    COMPREPLY=()
    # A value behind '=', which bash takes for a word of its own.
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $previous == "=" ]]; then
        previous="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    case "$previous" in
        @PATHS@) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
        @VALUES@) return ;;
    esac
    # The name of a command is the first word, or the first two.
    for ((index = 1; index < COMP_CWORD && index < 3; index++)); do
        word="${COMP_WORDS[index]}"
        [[ $word == -* ]] && break
        name="${name:+$name }$word"
        case "$name" in @FIRST_OF_TWO@) ;; *) break ;; esac
    done
    case "$name" in
@CASES@
        *) options="@FLAGS@" ;;
    esac
    if [[ $COMP_CWORD -eq 1 ]]; then
        words="@COMMANDS@"
    fi
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    elif [[ -n $words ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    elif [[ -n $paths ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -o filenames -F _galatea galatea
"#;

fn zsh(flags: &[ServerFlag]) -> String {
    let quoted = |text: &str| {
        text.replace('\'', "'\\''").replace('[', "\\[").replace(']', "\\]").replace(':', "\\:")
    };
    let specifications = |choices: &[CompletionOption]| {
        let mut text = String::new();
        for one in choices {
            let value = match (one.takes_value, one.is_path) {
                (false, _) => "",
                (true, true) => "=:path:_files",
                (true, false) => "=:value: ",
            };
            let (name, rest) = value
                .strip_prefix('=')
                .map_or((one.name.to_owned(), ""), |rest| (format!("{}=", one.name), rest));
            let _ = writeln!(text, "            '--{name}[{}]{rest}' \\", quoted(&one.help));
        }
        text
    };
    let mut cases = String::new();
    for command in &COMMANDS {
        let operands = match command.operands {
            OperandKind::Paths => String::from("'*:path:_files'"),
            OperandKind::Words(words) => format!("'1:word:({})'", words.join(" ")),
            OperandKind::Text => String::from("'1:name: '"),
        };
        let options = specifications(&choices(Some(command), flags));
        let _ = writeln!(
            cases,
            "        '{}') _arguments \\\n{options}            {operands} ;;",
            command.name
        );
    }
    let second = |(first, seconds): (&str, Vec<&str>)| {
        format!("        '{first}') _values command {} ;;\n", seconds.join(" "))
    };
    let seconds: String = second_words().into_iter().map(second).collect();
    ZSH.replace("@SECONDS@", seconds.trim_end())
        .replace("@CASES@", cases.trim_end())
        .replace("@COMMANDS@", &first_words().join(" "))
        .replace("@FIRST_OF_TWO@", &first_of_two())
        .replace(
            "@FLAGS@",
            specifications(&choices(None, flags)).trim_end().trim_end_matches(" \\"),
        )
}

const ZSH: &str = r#"#compdef galatea
# Completions of galatea for zsh: put this file into a directory of $fpath as _galatea.
_galatea() {
    local name="$words[2]" first=2
    case "$name" in
        @FIRST_OF_TWO@)
            if (( CURRENT == 3 )); then
                case "$name" in
@SECONDS@
                esac
                return
            fi
            name="$words[2] $words[3]" first=3 ;;
    esac
    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
        _values command @COMMANDS@
        return
    fi
    if [[ $words[2] == -* ]]; then
        name="" first=1
    fi
    shift $(( first - 1 )) words
    (( CURRENT -= first - 1 ))
    case "$name" in
@CASES@
        *) _arguments \
@FLAGS@ ;;
    esac
}
if [[ $funcstack[1] == _galatea ]]; then
    _galatea "$@"
else
    compdef _galatea galatea
fi
"#;

fn fish(flags: &[ServerFlag]) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    let mut text = String::from(
        "# Completions of galatea for fish: put this file into\n\
         # ~/.config/fish/completions/galatea.fish\n\
         function __galatea_is\n    set -l words (commandline -opc)\n    set -e words[1]\n    \
         string match -q -- \"$argv *\" \"$words \"\nend\n\
         function __galatea_begins\n    test (count (commandline -opc)) -eq 1\nend\n\
         complete -c galatea -f\n",
    );
    for word in first_words() {
        let command = COMMANDS.iter().find(|one| one.name.split(' ').next() == Some(word));
        let help = command.map_or("", |command| command.help);
        let first = help.split_once([':', '.']).map_or(help, |(first, _)| first);
        let _ = writeln!(
            text,
            "complete -c galatea -n __galatea_begins -a {word} -d '{}'",
            quoted(first)
        );
    }
    let mut add = |condition: &str, choices: &[CompletionOption]| {
        for one in choices {
            let value = match (one.takes_value, one.is_path) {
                (false, _) => "",
                (true, true) => " -r -F",
                (true, false) => " -x",
            };
            let _ = writeln!(
                text,
                "complete -c galatea -n '{condition}' -l {}{value} -d '{}'",
                one.name,
                quoted(&one.help)
            );
        }
    };
    for command in &COMMANDS {
        add(&format!("__galatea_is {}", command.name), &choices(Some(command), flags));
    }
    let others: Vec<String> =
        first_words().iter().map(|word| format!("not __galatea_is {word}")).collect();
    add(&others.join("; and "), &choices(None, flags));
    for command in &COMMANDS {
        let condition = format!("__galatea_is {}", command.name);
        let _ = match command.operands {
            OperandKind::Paths => writeln!(text, "complete -c galatea -n '{condition}' -F"),
            OperandKind::Words(words) => {
                writeln!(text, "complete -c galatea -n '{condition}' -a '{}'", words.join(" "))
            }
            OperandKind::Text => Ok(()),
        };
    }
    for (first, seconds) in second_words() {
        let mut condition = format!("__galatea_is {first}");
        for second in &seconds {
            let _ = write!(condition, "; and not __galatea_is {first} {second}");
        }
        let seconds = seconds.join(" ");
        let _ = writeln!(text, "complete -c galatea -n '{condition}' -a '{seconds}'");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: [ServerFlag; 2] = [
        ServerFlag { name: "log-file", argument: Some("string"), help: "A file." },
        ServerFlag { name: "dashboard", argument: None, help: "A page. And more." },
    ];

    #[test]
    fn every_shell_knows_every_command_and_flag() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = shell.completion_script(&FLAGS);
            for command in &COMMANDS {
                assert!(script.contains(command.name.split(' ').next_back().unwrap()));
            }
            for flag in FLAGS {
                assert!(script.contains(flag.name), "{shell:?}: {}", flag.name);
            }
            assert!(!script.contains('@') || shell == Shell::Zsh, "{script}");
        }
    }

    #[test]
    fn help_is_one_sentence() {
        let long = choice("log-file", Some("string"), "A file.\n  Another sentence.");
        assert_eq!((long.help.as_str(), long.is_path), ("A file", true));
    }
}
