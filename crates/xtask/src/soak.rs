//! Runs the tests that find more the longer they run, at full length.

use std::collections::BTreeSet;
use std::process::Command;

use crate::count::Count;
use crate::process::{command, record};
use crate::result::counted;
use crate::{builds, onnxruntime, pytest, python, workspace};

/// A test, and the variable that lengthens it.
struct LongTest {
    test: &'static str,
    variable: &'static str,
    value: &'static str,
}

const LOAD: &str = "tests/clients/test_load.py::\
                    test_hostile_requests_and_disconnects_disturb_no_good_request";

/// All tests whose length is set by a variable.
const LONG: [LongTest; 7] = [
    LongTest {
        test: "tests/clients/test_model_control.py::test_reloads_under_load_lose_no_request",
        variable: "GALATEA_TEST_RELOADS",
        value: "100",
    },
    LongTest {
        test: "tests/clients/test_model_control.py::test_reloads_leave_no_memory_behind",
        variable: "GALATEA_TEST_MEMORY_RELOADS",
        value: "1000",
    },
    LongTest {
        test: "tests/clients/test_ensembles.py::test_memory_after_a_fast_step_stays_flat",
        variable: "GALATEA_TEST_SLOW_ANSWERS",
        value: "3000",
    },
    LongTest {
        test: "tests/clients/test_shared_memory.py::\
               test_a_client_that_spoils_its_region_disturbs_no_other",
        variable: "GALATEA_TEST_REGION_SECONDS",
        value: "60",
    },
    LongTest {
        test: "tests/clients/test_python_crowd.py::test_each_request_is_answered_once",
        variable: "GALATEA_TEST_PYTHON_REQUESTS",
        value: "100000",
    },
    LongTest { test: LOAD, variable: "GALATEA_TEST_LOAD_SECONDS", value: "60" },
    LongTest { test: LOAD, variable: "GALATEA_TEST_LOAD_CONNECTIONS", value: "256" },
];

/// The Ray Serve tests, and the variable that specifies the Python extension.
const RAY: (&str, &str) = ("tests/deploy/test_ray.py", "GALATEA_TEST_RAY");

/// The task: runs only these tests and shows their measurements.
pub(crate) fn run() -> Result<(), String> {
    let Count { passed, failed } = long_tests()?.plus(ray_tests()?);
    println!("\n{passed} passed, {failed} failed");
    if failed == 0 { Ok(()) } else { Err(String::from("something failed")) }
}

fn long_tests() -> Result<Count, String> {
    let built = builds::programs()?;
    let mut tests = command(pytest::python_for_tests()?);
    tests.args(["-m", "pytest", "--quiet", "-s"]);
    at_full_length(&mut tests);
    tests.arg("--galatea").arg(built.server());
    tests.arg("--load-generator").arg(built.load_generator());
    tests.arg("--onnxruntime-library").arg(onnxruntime::fetch()?);
    Ok(counted(&record(&mut tests)?))
}

/// A Ray cluster takes minutes, and its packages take half a gigabyte.
fn ray_tests() -> Result<Count, String> {
    let (file, variable) = RAY;
    let requirements = workspace::root().join("tests/ray.txt");
    let mut tests = command(python::environment("venv-ray", &requirements, &[])?);
    tests.args(["-m", "pytest", "--quiet", "-s", "--disable-warnings", file]);
    tests.env(variable, builds::programs()?.extension());
    Ok(counted(&record(&mut tests)?))
}

fn at_full_length(tests: &mut Command) {
    let names: BTreeSet<&str> = LONG.iter().map(|long| long.test).collect();
    tests.args(names);
    tests.envs(LONG.iter().map(|long| (long.variable, long.value)));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::{LONG, RAY};
    use crate::workspace;

    /// Variables that name a library, choose random numbers, or lengthen a test that needs such a
    /// library, which this task doesn't install.
    const NO_LENGTHS: [&str; 6] = [
        "GALATEA_TEST_GGUF",
        "GALATEA_TEST_TENSORFLOW",
        "GALATEA_TEST_TORCH",
        "GALATEA_TEST_TORCH_MODELS",
        "GALATEA_TEST_SEED",
        "GALATEA_TEST_MUTATIONS",
    ];

    #[test]
    fn the_tests_exist_and_read_their_variable() {
        for long in LONG {
            let (path, function) = long.test.split_once("::").unwrap();
            let text = fs::read_to_string(workspace::root().join(path)).unwrap();
            assert!(text.contains(&format!("\ndef {function}(")), "{}", long.test);
            assert!(text.contains(long.variable), "{}", long.variable);
        }
        let text = fs::read_to_string(workspace::root().join(RAY.0)).unwrap();
        assert!(text.contains(RAY.1));
    }

    #[test]
    fn no_test_that_can_be_long_is_left_out() {
        let mut read = BTreeSet::new();
        for entry in fs::read_dir(workspace::root().join("tests/clients")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "py") {
                let text = fs::read_to_string(path).unwrap();
                let variables = text.split("environ.get(\"").skip(1);
                let names = variables.filter_map(|rest| rest.split('"').next());
                read.extend(
                    names.filter(|name| name.starts_with("GALATEA_TEST_")).map(String::from),
                );
            }
        }
        read.retain(|name| !NO_LENGTHS.contains(&name.as_str()));
        let known: BTreeSet<String> = LONG.iter().map(|long| long.variable.to_owned()).collect();
        assert_eq!(read, known);
    }
}
