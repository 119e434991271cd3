//! Runs other programs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::workspace;

/// Makes a command that runs in the workspace's root.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace::root());
    command
}

/// The cargo command that runs this task.
pub(crate) fn cargo() -> Command {
    command(option_env!("CARGO").unwrap_or("cargo"))
}

/// A command's words, for messages.
pub(crate) fn words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let mut words = vec![program.to_string_lossy()];
    words.extend(command.get_args().map(OsStr::to_string_lossy));
    words.join(" ")
}

/// Runs a command in this terminal.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let words = words(command);
    let status = command.status().map_err(|error| format!("can't run `{words}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{words}` failed ({status})")) }
}

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let words = words(command);
    let output = command
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("can't run `{words}`: {error}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("`{words}` failed ({}):\n{complaint}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{words}` did not print UTF-8"))
}

/// The output of a finished command.
pub(crate) struct CommandOutput {
    /// True if the command succeeded.
    pub(crate) success: bool,
    /// The standard output and the standard error output.
    pub(crate) text: String,
}

/// Runs a command; shows and records its output.
pub(crate) fn record(command: &mut Command) -> Result<CommandOutput, String> {
    let words = words(command);
    println!("\n$ {words}");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("can't run `{words}`: {error}"))?;
    let errors = child.stderr.take().map(|stream| thread::spawn(|| tee(stream, std::io::stderr())));
    let mut text = child.stdout.take().map(|stream| tee(stream, std::io::stdout()));
    let mut text = text.take().unwrap_or_default();
    if let Some(errors) = errors {
        text.push_str(&errors.join().map_err(|_| String::from("the reading thread panicked"))?);
    }
    let status = child.wait().map_err(|error| format!("lost `{words}`: {error}"))?;
    if !status.success() {
        println!("`{words}` ended with {status}");
    }
    Ok(CommandOutput { success: status.success(), text })
}

/// Runs a command, records its output, and shows it after the command has ended.
pub(crate) fn gather(command: &mut Command) -> Result<CommandOutput, String> {
    let words = words(command);
    let output = command.output().map_err(|error| format!("can't run `{words}`: {error}"))?;
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let text = format!("{}{}", shown(&output.stdout), shown(&output.stderr));
    println!("\n$ {words}\n{text}");
    Ok(CommandOutput { success: output.status.success(), text })
}

fn tee(stream: impl Read, mut shown: impl Write) -> String {
    let mut text = String::new();
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let _ = writeln!(shown, "{line}");
        text.push_str(&line);
        text.push('\n');
    }
    text
}
