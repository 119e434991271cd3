//! The program's commands apart from running the server: their names, arguments and options, for
//! parsing, help and completions.

/// A command of the program. Triton's program has no commands.
#[derive(Debug)]
pub struct Command {
    /// The command's words, such as `trace export`.
    pub name: &'static str,
    /// The positional arguments, as the usage text shows them.
    pub arguments: &'static str,
    /// The kind of positional arguments, for completions.
    pub operands: OperandKind,
    /// The command's own options.
    pub options: &'static [CommandOption],
    /// True if the command also accepts the server's flags.
    pub takes_flags: bool,
    /// The command's purpose, in a sentence or two.
    pub help: &'static str,
}

/// The kind of a command's positional arguments.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// Files and directories.
    Paths,
    /// One of these words.
    Words(&'static [&'static str]),
    /// Arbitrary text.
    Text,
}

/// An option of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandOption {
    /// The name, without its dashes.
    pub name: &'static str,
    /// The placeholder for the value in the usage text; `None` for a switch.
    pub argument: Option<&'static str>,
    /// The default as a valid value of the option; empty if there is none.
    pub default: &'static str,
    /// The option's effect.
    pub help: &'static str,
}

/// Every command, in the order of the usage text.
pub const COMMANDS: [Command; 13] = [
    SERVE,
    OPENAI,
    BENCH,
    TUNE,
    RECORD,
    SIMULATE,
    CHECK,
    NEW_PYTHON,
    NEW_KEY,
    LIST_KEYS,
    REVOKE_KEY,
    EXPORT_TRACES,
    COMPLETIONS,
];

const fn option(
    name: &'static str,
    argument: Option<&'static str>,
    default: &'static str,
    help: &'static str,
) -> CommandOption {
    CommandOption { name, argument, default, help }
}

/// Serve models without a repository.
pub const SERVE: Command = Command {
    name: "serve",
    arguments: "MODEL...",
    operands: OperandKind::Paths,
    options: &[
        option("json", None, "", "Print one line of JSON when the server is ready."),
        option("name", Some("string"), "", "The model's name, if one file is served."),
        option(
            "until-input-ends",
            None,
            "",
            "End when the standard input does, as when the program that started the server ends.",
        ),
    ],
    takes_flags: true,
    help: "Serves models without a repository and without configurations: files of ONNX models, \
           model.py files, directories of these, directories of single models, and model \
           repositories. Prints where, and a request to try.",
};

/// Serve a repository as Triton's frontend for OpenAI clients does.
pub const OPENAI: Command = Command {
    name: "openai",
    arguments: "--model-repository DIRECTORY",
    operands: OperandKind::Paths,
    options: &[
        option("tritonserver-log-verbose-level", Some("integer"), "", "The same as --log-verbose."),
        option(
            "uvicorn-log-level",
            Some("level"),
            "info",
            "The level of the log of Triton's HTTP library: critical, error, warning, info, debug \
             or trace. It has no effect: there is no such log.",
        ),
    ],
    takes_flags: true,
    help: "Serves a model repository with the flags and defaults of Triton's frontend for OpenAI \
           clients: the port for these clients is 9000, HTTP and gRPC need \
           --enable-kserve-frontends, and the metrics have no port of their own. Under the name \
           tritonserver-openai, the program is this command.",
};

/// Measure a model.
pub const BENCH: Command = Command {
    name: "bench",
    arguments: "[MODEL...]",
    operands: OperandKind::Paths,
    options: &[
        option(
            "url",
            Some("url"),
            "",
            "A running server, http://HOST:PORT or grpc://HOST:PORT; may be given several times. \
             Otherwise one is started for the models, which are those of serve.",
        ),
        option("model", Some("string"), "", "The model to measure, if there are several."),
        option(
            "protocol",
            Some("protocol"),
            "both",
            "The protocols by which a started server is measured: http, grpc or both.",
        ),
        option(
            "concurrency",
            Some("numbers"),
            "1,4,16",
            "How many connections send requests, one after the other on each.",
        ),
        option("duration", Some("seconds"), "2", "How long each concurrency is measured."),
        option("batch", Some("number"), "1", "The size of each request's batch."),
        option(
            "shape",
            Some("name:sizes"),
            "",
            "The shape of an input, such as image:3,224,224; may be given for several inputs. \
             Variable dimensions are 1 otherwise.",
        ),
        option("json", None, "", "Print the results as JSON."),
    ],
    takes_flags: true,
    help: "Measures the throughput and the latency of a model, of a running server or of one that \
           is started for it, and prints a table.",
};

/// Tune a model.
pub const TUNE: Command = Command {
    name: "tune",
    arguments: "MODEL",
    operands: OperandKind::Paths,
    options: &[
        option(
            "objective",
            Some("objective"),
            "throughput",
            "What is wanted: throughput, p99<20ms (most requests with this latency; also p50, \
             p90 and p95), or goodput<20ms (most answers within this time, under overload).",
        ),
        option("batch", Some("number"), "1", "The size of each request's batch."),
        option(
            "shape",
            Some("name:sizes"),
            "",
            "The shape of an input, such as image:3,224,224; may be given for several inputs. \
             Variable dimensions are 1 otherwise.",
        ),
        option("max-batch", Some("number"), "32", "The largest batch that is tried."),
        option(
            "allow-smaller-batches",
            None,
            "",
            "Try a smaller max_batch_size than the model's, and its batches without joining requests.",
        ),
        option("instances", Some("number"), "", "The most instances; by default the processors."),
        option("seconds", Some("number"), "2", "How long each of the best few is checked."),
        option("output", Some("file"), "", "Where the configuration is written."),
        option("write", None, "", "Replace the configuration that is there."),
        option("json", None, "", "Print the results as JSON."),
    ],
    takes_flags: true,
    help: "Measures what executions of a model cost on this machine, searches instances, batches, \
           delays and threads by simulation, checks the best few on a server, and prints a \
           config.pbtxt with the reasons.",
};

/// Record traffic.
pub const RECORD: Command = Command {
    name: "record",
    arguments: "URL",
    operands: OperandKind::Text,
    options: &[
        option("model", Some("string"), "", "The model whose traffic is recorded."),
        option("model-version", Some("number"), "", "Its version; the newest one otherwise."),
        option("output", Some("file"), "traffic.jsonl", "The file that is written."),
        option("seconds", Some("number"), "60", "How long it is recorded."),
        option(
            "max-bytes",
            Some("number"),
            "268435456",
            "The size at which the file gets a number behind its name, and the next one begins.",
        ),
        option("files", Some("number"), "4", "How many files are kept."),
        option(
            "header",
            Some("name:value"),
            "",
            "A header of the requests, such as a key; may be given several times.",
        ),
        option("json", None, "", "Print what was recorded as JSON."),
    ],
    takes_flags: false,
    help: "Records the requests that a model of a running server gets: their times, sizes, \
           deadlines and executions, without their contents. The server needs \
           --allow-traffic-recording=true.",
};

/// Simulate a recording.
pub const SIMULATE: Command = Command {
    name: "simulate",
    arguments: "FILE...",
    operands: OperandKind::Paths,
    options: &[
        option("load", Some("factor"), "1", "How much faster requests arrive than they did."),
        option("repeat", Some("number"), "", "How often the recording is played."),
        option("instances", Some("number"), "", "Number of instances."),
        option("max-batch", Some("number"), "", "The maximum batch size; 0 is without batches."),
        option("delay", Some("microseconds"), "", "The maximum queue delay."),
        option("preferred", Some("numbers"), "", "Preferred batch sizes, such as 4,8."),
        option("queue-size", Some("number"), "", "The maximum number of requests that wait."),
        option("timeout", Some("microseconds"), "", "How long a request may wait."),
        option(
            "objective",
            Some("microseconds"),
            "",
            "The latency objective: batches are closed by deadlines.",
        ),
        option(
            "deadline",
            Some("microseconds"),
            "",
            "When answers are due, for requests without a deadline of their own.",
        ),
        option(
            "processors",
            Some("number"),
            "",
            "Further instances than these slow each other down.",
        ),
        option(
            "clients",
            Some("number"),
            "",
            "Clients that send a request when they have the answer to the last one; 0 keeps the \
             recorded times. By default the recording tells.",
        ),
        option("config", Some("file"), "", "A config.pbtxt in place of the recorded one."),
        option("json", None, "", "Print the results as JSON."),
    ],
    takes_flags: false,
    help: "Says what the server would do with recorded traffic under other settings: the same \
           scheduler on a virtual clock, with the recorded arrivals and durations.",
};

/// Check models.
pub const CHECK: Command = Command {
    name: "check",
    arguments: "MODEL...",
    operands: OperandKind::Paths,
    options: &[option("json", None, "", "Print the report as JSON.")],
    takes_flags: true,
    help: "Finds what would keep models from loading, without serving them: files, directories of \
           models, or repositories.",
};

/// Write a starter model.
pub const NEW_PYTHON: Command = Command {
    name: "new python",
    arguments: "NAME",
    operands: OperandKind::Text,
    options: &[
        option("directory", Some("directory"), "models", "The repository that gets the model."),
        option("json", None, "", "Print what was written as JSON."),
    ],
    takes_flags: false,
    help: "Writes a model in Python to begin with, and its test.",
};

/// Make a key of a tenant.
pub const NEW_KEY: Command = Command {
    name: "keys new",
    arguments: "FILE TENANT",
    operands: OperandKind::Paths,
    options: &[
        option(
            "apis",
            Some("names"),
            "",
            "The APIs that the tenant may use, such as inference,statistics. By default metadata, \
             inference and model-config.",
        ),
        option(
            "requests-per-second",
            Some("number"),
            "",
            "The inference requests that the tenant may send in a second.",
        ),
        option("json", None, "", "Print the key as JSON."),
    ],
    takes_flags: false,
    help: "Makes a key of a tenant, adds its hash to a file for --tenants-file, and prints the \
           key. The key is stored nowhere else.",
};

/// List the keys of tenants.
pub const LIST_KEYS: Command = Command {
    name: "keys list",
    arguments: "FILE",
    operands: OperandKind::Paths,
    options: &[option("json", None, "", "Print errors as JSON too.")],
    takes_flags: false,
    help: "Lists the tenants of a file with the IDs of their keys, their APIs and limits.",
};

/// Revoke a key of a tenant.
pub const REVOKE_KEY: Command = Command {
    name: "keys revoke",
    arguments: "FILE KEY-ID",
    operands: OperandKind::Paths,
    options: &[option("json", None, "", "Print errors as JSON too.")],
    takes_flags: false,
    help: "Removes a key from a file of tenants.",
};

/// Convert trace files for viewers.
pub const EXPORT_TRACES: Command = Command {
    name: "trace export",
    arguments: "FILE...",
    operands: OperandKind::Paths,
    options: &[option("json", None, "", "Print errors as JSON too; traces always are.")],
    takes_flags: false,
    help: "Converts files of traces for Perfetto, and prints them.",
};

/// The shells that have completions.
pub const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Print the completions for a shell.
pub const COMPLETIONS: Command = Command {
    name: "completions",
    arguments: "SHELL",
    operands: OperandKind::Words(&SHELLS),
    options: &[],
    takes_flags: false,
    help: "Prints the completions of commands and flags for bash, zsh or fish.",
};

impl Command {
    /// The command at the start of these arguments, and the number of its words.
    #[must_use]
    pub fn from_arguments(arguments: &[String]) -> Option<(&'static Self, usize)> {
        COMMANDS.iter().find_map(|command| {
            let words: Vec<&str> = command.name.split(' ').collect();
            let begins = arguments.len() >= words.len()
                && words.iter().zip(arguments).all(|(word, given)| word == given);
            begins.then_some((command, words.len()))
        })
    }

    /// The first command that starts with this word but whose second word is missing.
    #[must_use]
    pub fn find_incomplete(word: &str) -> Option<&'static Self> {
        Self::beginning_with(word).next()
    }

    /// The commands that start with this word.
    pub fn beginning_with(word: &str) -> impl Iterator<Item = &'static Self> {
        COMMANDS.iter().filter(move |command| command.name.split(' ').next() == Some(word))
    }

    /// The option with this name.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&'static CommandOption> {
        self.options.iter().find(|option| option.name == name)
    }

    /// The command's synopsis.
    #[must_use]
    pub fn synopsis(&self) -> String {
        let mut text = format!("galatea {}", self.name);
        for option in self.options {
            text.push_str(&match option.argument {
                Some(argument) => format!(" [--{} {}]", option.name, argument.to_uppercase()),
                None => format!(" [--{}]", option.name),
            });
        }
        if self.takes_flags {
            text.push_str(" [flags]");
        }
        format!("{text} {}", self.arguments)
    }
}
