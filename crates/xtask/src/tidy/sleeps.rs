//! Sleeps in tests.
//!
//! A test that sleeps and then expects something fails on a busy machine, and a test that sleeps and
//! then expects nothing passes on it. Tests wait for conditions, counts or log lines instead: with
//! `galatea_stdx::testing` in Rust, and with `wait_until` of `tests/clients/server.py` in Python. A
//! sleep that remains has a comment `sleep: REASON` in its line or directly above.

use super::Violation;
use super::files::File;

/// Calls in Rust that let time pass.
const IN_RUST: [&str; 4] = ["sleep(", "sleep_until(", "yield_now(", "recv_timeout(Duration::"];

/// Calls in Python and C that let time pass. Sources of models in strings count.
const IN_OTHERS: [&str; 6] =
    ["sleep(", "usleep(", "nanosleep(", "clock_nanosleep(", "Timer(", "setitimer("];

/// Folders whose Python and C sources are tests.
const FOLDERS: [&str; 2] = ["tests/", "bench/tests/"];

/// The beginnings of a reason.
const REASONS: [&str; 3] = ["// sleep: ", "# sleep: ", "/* sleep: "];

/// Every sleep in a test that has no reason.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    files.iter().flat_map(sleeps_without_reason).collect()
}

fn sleeps_without_reason(file: &File) -> Vec<Violation> {
    let code = code_of_tests(file);
    let calls: &[&str] = if file.is("rs") { &IN_RUST } else { &IN_OTHERS };
    let lines: Vec<&str> = file.text.lines().collect();
    let sleeps =
        code.lines().enumerate().filter(|(_, line)| calls.iter().any(|one| has(line, one)));
    let unreasoned = sleeps.filter(|(index, _)| !has_reason(lines.get(..=*index).unwrap_or(&[])));
    let violation = |(index, _)| Violation {
        area: file.area.clone(),
        text: format!("{}:{}: a sleep in a test without 'sleep: REASON'", file.path, index + 1),
    };
    unreasoned.map(violation).collect()
}

/// The lines of a file that belong to tests. The other lines are empty.
fn code_of_tests(file: &File) -> String {
    let is_in_folder = FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    if is_in_folder && ["py", "c", "h"].iter().any(|extension| file.is(extension)) {
        return file.text.clone();
    }
    if !file.is("rs") || file.is_test() {
        return if file.is("rs") { file.masked.code.clone() } else { String::new() };
    }
    let production = file.production_code();
    let lines = file.masked.code.lines().zip(production.lines());
    lines.map(|(all, kept)| if all == kept { "" } else { all }).collect::<Vec<_>>().join("\n")
}

/// Returns true if the line has this call. A declaration and a sleep of no time are none.
fn has(line: &str, call: &str) -> bool {
    line.match_indices(call).any(|(at, _)| {
        let (before, rest) = line.split_at(at);
        let is_whole = !before.ends_with(|one: char| one.is_alphanumeric() || one == '_');
        let is_declared = before.ends_with("fn ") || before.ends_with("def ");
        is_whole && !is_declared && !rest.starts_with("sleep(0)")
    })
}

/// Returns true if the last of these lines, or the comment above it, has a reason of several words.
fn has_reason(lines: &[&str]) -> bool {
    let Some((last, above)) = lines.split_last() else { return false };
    let is_comment = |line: &&&str| {
        let line = line.trim_start();
        REASONS.iter().any(|one| one.split(' ').next().is_some_and(|open| line.starts_with(open)))
    };
    let comment = above.iter().rev().take_while(is_comment);
    std::iter::once(last).chain(comment).any(|line| {
        let reason = REASONS.iter().find_map(|one| line.split_once(one));
        reason.is_some_and(|(_, reason)| reason.split_whitespace().count() > 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_one(path: &str, text: &str, expected: &[usize]) {
        let found: Vec<String> =
            check(&[File::new(path, text)]).into_iter().map(|found| found.text).collect();
        let line = |line| format!("{path}:{line}: a sleep in a test without 'sleep: REASON'");
        assert_eq!(found, expected.iter().map(line).collect::<Vec<_>>(), "{text}");
    }

    #[test]
    fn only_tests_are_read() {
        let source = "fn a() { sleep(T); }\n#[cfg(test)]\nmod tests {\n    thread::sleep(T);\n}\n";
        check_one("crates/http/src/a.rs", source, &[4]);
        check_one("crates/http/tests/a.rs", source, &[1, 4]);
        check_one("crates/http/src/a_tests.rs", source, &[1, 4]);
        check_one("bench/tests/test_a.py", "time.sleep(1)\n", &[1]);
        for path in ["bench/a.py", "examples/a.c", "tests/README.md"] {
            check_one(path, "time.sleep(1)\n", &[]);
        }
    }

    #[test]
    fn calls_that_let_time_pass_are_found() {
        let rust = "sleep(T);\nyield_now().await;\na.recv_timeout(Duration::MAX);\n";
        check_one("crates/http/tests/a.rs", rust, &[1, 2, 3]);
        let rust = "a.recv_timeout(LONG);\nfn sleep() {}\ntry_sleep();\n\"sleep(T)\";\n";
        check_one("crates/http/tests/a.rs", rust, &[]);
        let python = "sleep(1)\nMODEL = '''\n  usleep(1);\n'''\nthreading.Timer(1, a)\n";
        check_one("tests/clients/a.py", python, &[1, 3, 5]);
        let python = "asyncio.sleep(0)\ndef sleep(time):\n    test_sleep(1)\n";
        check_one("tests/clients/a.py", python, &[]);
    }

    #[test]
    fn a_reason_has_several_words() {
        check_one("tests/a.py", "sleep(1)  # sleep: the poll's interval\n", &[]);
        check_one("tests/a.py", "# It polls.\n# sleep: the poll's\n# interval\nsleep(1)\n", &[]);
        check_one("tests/a.c", "/* sleep: the poll's interval */\nusleep(1);\n", &[]);
        check_one("crates/http/tests/a.rs", "// sleep: a pause\n\nsleep(T);\n", &[3]);
        check_one("crates/http/tests/a.rs", "// sleep: reason\nsleep(T);\n", &[2]);
        check_one("crates/http/tests/a.rs", "// A pause.\nsleep(T); sleep(T);\n", &[2]);
    }
}
