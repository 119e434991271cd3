//! Plants the listed bugs in a copy of the scheduler, one at a time, and demands
//! that the simulator finds each. Says also whether the checks find it without
//! the naive scheduler, and whether the scheduler's own tests do.
//!
//! `mutants [--quick] [WORDS]` takes those whose name contains the words; quick
//! is without the scheduler's own tests.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool speaks to whoever called it")]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const LISTS: [&str; 5] = [
    include_str!("../../mutants/scheduler.mutants"),
    include_str!("../../mutants/sequences.mutants"),
    include_str!("../../mutants/replies.mutants"),
    include_str!("../../mutants/permits.mutants"),
    include_str!("../../mutants/ensembles.mutants"),
];
const SEEDS: &str = "3000";
/// A bug may also show by never ending.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone)]
struct Mutant<'list> {
    name: &'list str,
    file: &'list str,
    old: String,
    new: String,
}

fn main() -> ExitCode {
    let (options, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let tests = if options.iter().any(|option| option == "--quick") {
        UnitTests::Skipped
    } else {
        UnitTests::Run
    };
    match examine(&words.join(" "), tests) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("{missed} not found by the simulator");
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Examines the mutants whose name contains the filter; says how many the
/// simulator misses.
fn examine(filter: &str, tests: UnitTests) -> Result<usize, String> {
    let mutants = parse_all()?;
    let copy = Copied::new()?;
    println!("{:<58} {:<8} {:<8} {:<8}", "planted bug", "oracle", "checks", "tests");
    copy.build()?;
    if copy.verdict(&["--seeds", SEEDS])?.is_found() {
        return Err("the scheduler fails without any planted bug".to_owned());
    }
    let mut missed = 0;
    for mutant in mutants.iter().filter(|mutant| mutant.name.contains(filter)) {
        let original = copy.plant(mutant)?;
        let built = copy.build();
        let verdicts = built.and_then(|()| {
            let oracle = copy.verdict(&["--seeds", SEEDS])?;
            let checks = copy.verdict(&["--seeds", SEEDS, "--without-oracle"])?;
            let tests = match tests {
                UnitTests::Run => copy.unit_tests()?.word(),
                UnitTests::Skipped => "-",
            };
            Ok((oracle, checks, tests))
        });
        copy.write(mutant.file, &original)?;
        let (oracle, checks, tests) =
            verdicts.map_err(|message| format!("{}: {message}", mutant.name))?;
        println!("{:<58} {:<8} {:<8} {:<8}", mutant.name, oracle.word(), checks.word(), tests);
        missed += usize::from(!oracle.is_found() && !checks.is_found());
    }
    Ok(missed)
}

/// Whether the scheduler's own tests have their say.
#[derive(Copy, Clone)]
enum UnitTests {
    Run,
    Skipped,
}

#[derive(Copy, Clone)]
enum Verdict {
    Found,
    Endless,
    Missed,
}

impl Verdict {
    fn is_found(self) -> bool {
        match self {
            Verdict::Found | Verdict::Endless => true,
            Verdict::Missed => false,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Verdict::Found => "found",
            Verdict::Endless => "endless",
            Verdict::Missed => "MISSED",
        }
    }
}

impl Mutant<'_> {
    #[cfg(test)]
    fn is_complete(&self) -> bool {
        !self.old.is_empty() && !self.new.is_empty()
    }
}

fn parse_all() -> Result<Vec<Mutant<'static>>, String> {
    LISTS.iter().map(|list| parse(list)).collect::<Result<Vec<_>, _>>().map(|lists| lists.concat())
}

fn parse(list: &str) -> Result<Vec<Mutant<'_>>, String> {
    let mut mutants: Vec<Mutant<'_>> = Vec::new();
    for line in
        list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(name) = line.strip_prefix("mutant:") {
            mutants.push(Mutant {
                name: name.trim(),
                file: "",
                old: String::new(),
                new: String::new(),
            });
            continue;
        }
        let mutant =
            mutants.last_mut().ok_or_else(|| format!("{line:?} comes before the first mutant"))?;
        if let Some(file) = line.strip_prefix("file:") {
            mutant.file = file.trim();
        } else if let Some(old) = line.strip_prefix("- ") {
            mutant.old = format!("{} {}", mutant.old, old.trim());
        } else if let Some(new) = line.strip_prefix('+') {
            mutant.new = format!("{}\n{}", mutant.new, new.trim());
        } else {
            return Err(format!("{line:?} is none of mutant:, file:, - and +"));
        }
    }
    Ok(mutants)
}

/// A workspace of the two crates alone, somewhere else.
struct Copied {
    root: PathBuf,
}

impl Copied {
    fn new() -> Result<Self, String> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let root = std::env::temp_dir().join(format!("galatea-mutants-{}", std::process::id()));
        let copied = Copied { root };
        for part in ["crates/policy", "crates/sim"] {
            copy_folder(&workspace.join(part), &copied.root.join(part))?;
        }
        let manifest = read(&workspace.join("Cargo.toml"))?;
        // Members that are not copied would be missed.
        let own = |line| match line {
            line if str::starts_with(line, "members = ") => Some("members = [\"crates/*\"]"),
            line if str::starts_with(line, "default-members") => None,
            line => Some(line),
        };
        let manifest: Vec<&str> = manifest.lines().filter_map(own).collect();
        write(&copied.root.join("Cargo.toml"), &manifest.join("\n"))?;
        Ok(copied)
    }

    fn file(&self, file: &str) -> PathBuf {
        self.root.join("crates/policy").join(file)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        write(&self.file(file), text)
    }

    /// Plants the bug and returns the file as it was.
    fn plant(&self, mutant: &Mutant<'_>) -> Result<String, String> {
        let original = read(&self.file(mutant.file))?;
        let places = find(&original, &mutant.old);
        let [place] = &places[..] else {
            return Err(format!(
                "{}: its text is {} times in {}",
                mutant.name,
                places.len(),
                mutant.file
            ));
        };
        let mut planted = original.clone();
        planted.replace_range(place.clone(), &mutant.new);
        self.write(mutant.file, &planted)?;
        Ok(original)
    }

    fn cargo(&self, words: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.root).args(words).arg("--target-dir").arg(self.root.join("target"));
        cargo
    }

    fn build(&self) -> Result<(), String> {
        let mut cargo = self.cargo(&["build", "--quiet", "--offline", "--package", "galatea-sim"]);
        let output =
            cargo.args(["--bin", "galatea-sim"]).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn verdict(&self, words: &[&str]) -> Result<Verdict, String> {
        let mut simulator = Command::new(self.root.join("target/debug/galatea-sim"));
        verdict(simulator.args(words))
    }

    fn unit_tests(&self) -> Result<Verdict, String> {
        verdict(&mut self.cargo(&[
            "test",
            "--quiet",
            "--offline",
            "--package",
            "galatea-policy",
            "--lib",
        ]))
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // What is left behind lies in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// A program that fails has found the bug, and so has one that never ends.
fn verdict(command: &mut Command) -> Result<Verdict, String> {
    let start = Instant::now();
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    while start.elapsed() < PATIENCE {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(Verdict::Missed),
            Ok(Some(_)) => return Ok(Verdict::Found),
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.to_string()),
        }
    }
    child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
    Ok(Verdict::Endless)
}

/// Where the text is, with any white space between its words.
fn find(source: &str, text: &str) -> Vec<Range<usize>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let Some(first) = words.first() else { return Vec::new() };
    let starts = source.match_indices(first).map(|(start, _)| start);
    starts.filter_map(|start| Some(start..match_words(source, start, &words)?)).collect()
}

/// The end of the words that begin here, if they do.
fn match_words(source: &str, start: usize, words: &[&str]) -> Option<usize> {
    let mut end = start;
    for (index, word) in words.iter().enumerate() {
        let rest = &source[end..];
        let trimmed = rest.trim_start();
        let space = rest.len() - trimmed.len();
        if (index > 0 && space == 0) || !trimmed.starts_with(word) {
            return None;
        }
        end += space + word.len();
    }
    Some(end)
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", from.display());
    std::fs::create_dir_all(to).map_err(at)?;
    for entry in std::fs::read_dir(from).map_err(at)? {
        let entry = entry.map_err(at)?;
        let target = to.join(entry.file_name());
        if entry.file_type().map_err(at)?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target).map_err(at)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mutant whose text is gone would be found by nobody, so it is renewed
    /// with the code it plants its bug in.
    #[test]
    fn each_planted_bug_has_its_place() {
        let mutants = parse_all().unwrap();
        assert!(mutants.len() >= 100);
        let is_planted = |mutant: &&Mutant<'_>| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy").join(mutant.file);
            find(&read(&path).unwrap(), &mutant.old).len() == 1 && mutant.is_complete()
        };
        let (planted, stale): (Vec<_>, Vec<_>) = mutants.iter().partition(is_planted);
        let stale: Vec<&str> = stale.into_iter().map(|mutant| mutant.name).collect();
        assert!(stale.is_empty(), "{} have their place, these don't: {stale:#?}", planted.len());
    }

    #[test]
    fn text_is_found_across_lines() {
        assert_eq!(find("a  +\n b; a + b", "a + b"), [0..7, 9..14]);
        assert_eq!(find("a+b", "a + b"), []);
    }
}
