//! Tests of the log's public interface: the stream that receives each line.

use std::sync::Mutex;

use super::*;

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Captured {
    /// The messages, without their line headers.
    fn messages(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| line.split_once("] ").unwrap().1.to_owned()).collect()
    }
}

fn logger(options: LogOptions) -> (Logger, Captured, Captured) {
    let (information, problems) = (Captured::default(), Captured::default());
    let logger =
        Logger::to_writers(options, Box::new(information.clone()), Box::new(problems.clone()));
    (logger, information, problems)
}

#[test]
// row: LOGF-03
fn information_and_problems_go_to_different_streams() {
    let (logger, information, problems) = logger(LogOptions::default());
    logger.info("a");
    logger.warning("b");
    logger.error("c");
    logger.verbose(1, "d");
    assert_eq!(information.messages(), ["\"a\""]);
    assert_eq!(problems.messages(), ["\"b\"", "\"c\""]);
}

#[test]
// row: LOGF-04
fn levels_switch_while_it_runs() {
    let (logger, information, problems) = logger(LogOptions::default());
    let elsewhere = logger.clone();
    elsewhere.set_info(false);
    elsewhere.set_warning(false);
    elsewhere.set_error(false);
    elsewhere.set_verbose_level(2);
    logger.info("a");
    logger.warning("b");
    logger.error("c");
    logger.verbose(2, "d");
    logger.verbose(3, "e");
    assert_eq!(information.messages(), ["\"d\""]);
    assert_eq!(problems.messages(), Vec::<String>::new());
}

#[test]
fn a_line_names_the_file_and_line_of_its_caller() {
    let (logger, information, _) = logger(LogOptions::default());
    let expected = format!("tests.rs:{}] \"here\"", line!() + 1);
    logger.info("here");
    let text = String::from_utf8(information.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains(&expected), "{text}");
}

#[test]
// row: LOGF-01
fn a_quoted_message_is_one_line_and_a_raw_one_is_unchanged() {
    for (quote, expected) in [(true, r#"] "a\nb""#), (false, "] a\nb")] {
        let (logger, information, _) = logger(LogOptions { quote, ..LogOptions::default() });
        logger.info("a\nb");
        let text = String::from_utf8(information.0.lock().unwrap().clone()).unwrap();
        assert!(text.ends_with(&format!("{expected}\n")), "{text}");
    }
}

#[test]
fn a_file_receives_everything_and_keeps_what_it_had() {
    let path = std::env::temp_dir().join(format!("galatea-log-{}", std::process::id()));
    std::fs::write(&path, "before] kept\n").unwrap();
    let options = LogOptions { file: Some(path.clone()), ..LogOptions::default() };
    let logger = Logger::new(options).unwrap();
    logger.info("a");
    logger.error("b");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let messages: Vec<_> = text.lines().map(|line| line.split_once("] ").unwrap().1).collect();
    assert_eq!(messages, ["kept", "\"a\"", "\"b\""]);
    assert_eq!(logger.settings().file, path.display().to_string());
}

#[test]
fn a_table_starts_below_the_head_of_its_line() {
    let (logger, information, _) = logger(LogOptions::default());
    let mut table = TextTable::new(500, ["Model"]);
    table.add_row(["simple"]);
    logger.table(&table);
    let text = String::from_utf8(information.0.lock().unwrap().clone()).unwrap();
    let below = text.split_once("] \n").unwrap().1;
    assert_eq!(below, "+--------+\n| Model  |\n+--------+\n| simple |\n+--------+\n\n");
}

#[test]
fn the_file_and_the_format_switch_while_it_runs() {
    let path = std::env::temp_dir().join(format!("galatea-log-switched-{}", std::process::id()));
    let (logger, information, _) = logger(LogOptions::default());
    logger.set_format(LogFormat::Iso8601);
    logger.info("a");
    let text = String::from_utf8(information.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("Z I "), "{text}");
    logger.set_file(Some(path.clone())).unwrap();
    assert_eq!(logger.settings().file, path.display().to_string());
    logger.error("b");
    assert!(logger.set_file(Some(path.join("no directory"))).is_err());
    logger.error("c");
    logger.set_file(None).unwrap();
    logger.set_format(LogFormat::Default);
    logger.info("d");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let messages: Vec<&str> = text.lines().map(|line| line.split_once("] ").unwrap().1).collect();
    assert_eq!(messages, ["\"b\"", "\"c\""]);
    assert_eq!(information.messages(), ["\"a\"", "\"d\""]);
    assert_eq!(logger.settings().format, LogFormat::Default);
}

#[test]
fn a_long_message_is_cut() {
    let (logger, information, _) = logger(LogOptions::default());
    logger.info("\u{202e}".repeat(1 << 20));
    let message = information.messages().pop().unwrap();
    assert!(message.len() < 3 * LOG_MESSAGE_BYTES_MAX, "{}", message.len());
    assert!(message.ends_with(" more bytes)\""));
}
