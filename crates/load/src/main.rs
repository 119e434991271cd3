//! Sends a mix of good requests, hostile requests and disconnects to a running server with an
//! identity model.
//!
//! Each connection sends one request after another. With a rate or a list of times, requests
//! instead arrive in a Poisson process or at those times, and take any free connection. A seeded
//! generator chooses the next step: a good request, whose response must contain the bytes sent; one
//! of the hostile requests of `hostile.rs`, after which the connection is dropped; or a good
//! request that a disconnect cuts off. The report is one line of JSON. The exit code is 1 if a good
//! request failed.
//!
//! This is not a benchmark. It shares the machine with the server, and measures latencies only to
//! show that good requests are still served.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool speaks to its terminal")]

mod arrivals;
mod grpc;
mod hostile;
mod http;
mod mix;
mod open;
mod options;
mod report;
mod serial;

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use options::{Options, Protocol};
use report::Report;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match Options::parse(&arguments) {
        Ok(options) => options,
        Err(reason) => {
            eprintln!("error: {reason}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(options) {
        Ok(report) => {
            println!("{}", report.to_json());
            if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: Options) -> std::io::Result<Report> {
    let report = Rc::new(RefCell::new(Report::new(options.samples.as_deref())?));
    let options = Rc::new(options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    runtime.block_on(tasks.run_until(async {
        match options.protocol {
            Protocol::Http => spawn::<http::Client>(&options, &report),
            Protocol::Grpc => spawn::<grpc::Client>(&options, &report),
        }
    }));
    runtime.block_on(tasks);
    let report = Rc::try_unwrap(report).map_err(|_| std::io::Error::other("a task goes on"))?;
    Ok(report.into_inner())
}

/// Starts the senders.
fn spawn<C: serial::Client + 'static>(options: &Rc<Options>, report: &Rc<RefCell<Report>>) {
    let end = Instant::now() + options.duration;
    let arrivals = match (&options.times, options.rate) {
        (Some(times), _) => Some(arrivals::replay(times.clone())),
        (None, Some(rate)) => Some(arrivals::begin(rate, options.seed, end)),
        (None, None) => None,
    };
    if let Some(arrivals) = arrivals {
        let (options, report) = (options.clone(), report.clone());
        tokio::task::spawn_local(async move { open::run::<C>(&options, arrivals, &report).await });
        return;
    }
    for number in 0..options.connections {
        let (options, report) = (options.clone(), report.clone());
        tokio::task::spawn_local(async move {
            serial::run::<C>(&options, number, end, &report).await;
        });
    }
}
