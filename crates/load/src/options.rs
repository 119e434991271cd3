//! The command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::arrivals;

pub(crate) const USAGE: &str = "\
usage: galatea-load (--http | --grpc) ADDRESS [OPTION VALUE]...

  --model NAME         an identity model with one input and output INT32 [-1] (identity)
  --input NAME         its input (INPUT0)
  --connections N      connections, each with one request at a time (256)
  --seconds N          how long (60)
  --elements N         elements of a good request's tensor (64)
  --hostile N          percent of hostile requests (10)
  --disconnects N      percent of disconnects (10)
  --seed N             of the choices (1)
  --rate N             open loop: N arrivals a second, a Poisson process, over at most so many
                       connections; without it each connection sends one request after another
  --times FILE         open loop: arrivals at these nanoseconds since the start, one in a line, in
                       place of --rate and --seconds
  --batched yes        the model has batches: each request is a batch of one
  --samples FILE       when each good request was sent, in seconds since the start, and its latency
                       in milliseconds: pairs of 32-bit floats, as they happen
  --refusals yes       a refusal of a good request (503, RESOURCE_EXHAUSTED) isn't a failure";

/// A protocol.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

/// The requests to send, and their target.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) protocol: Protocol,
    pub(crate) address: SocketAddr,
    pub(crate) model: String,
    pub(crate) input: String,
    pub(crate) connections: u64,
    pub(crate) duration: Duration,
    pub(crate) elements: usize,
    pub(crate) hostile_percent: u64,
    pub(crate) disconnect_percent: u64,
    pub(crate) seed: u64,
    /// The number of arrivals per second, in an open loop.
    pub(crate) rate: Option<f64>,
    /// The arrival times, in an open loop.
    pub(crate) times: Option<Vec<Duration>>,
    /// True if the model's tensors have a batch dimension.
    pub(crate) is_batched: bool,
    /// The file to which latencies are written.
    pub(crate) samples: Option<PathBuf>,
    /// True if HTTP 503 and gRPC RESOURCE_EXHAUSTED are counted separately from failures.
    pub(crate) expects_refusals: bool,
}

impl Options {
    /// Reads the command line.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let [protocol, address, rest @ ..] = arguments else {
            return Err(String::from("a protocol and an address are missing"));
        };
        let protocol = match protocol.as_str() {
            "--http" => Protocol::Http,
            "--grpc" => Protocol::Grpc,
            other => return Err(format!("'{other}' is not a protocol")),
        };
        let address = address.parse().map_err(|_| format!("'{address}' is not an address"))?;
        let mut options = Self {
            protocol,
            address,
            model: String::from("identity"),
            input: String::from("INPUT0"),
            connections: 256,
            duration: Duration::from_mins(1),
            elements: 64,
            hostile_percent: 10,
            disconnect_percent: 10,
            seed: 1,
            rate: None,
            times: None,
            is_batched: false,
            samples: None,
            expects_refusals: false,
        };
        for pair in rest.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
            options.set(name, value)?;
        }
        Ok(options)
    }

    /// The shape of a good request's tensor.
    pub(crate) fn shape(&self) -> Vec<usize> {
        if self.is_batched { vec![1, self.elements] } else { vec![self.elements] }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<u64>().map_err(|_| format!("{name} takes a number"));
        match name {
            "--model" => value.clone_into(&mut self.model),
            "--input" => value.clone_into(&mut self.input),
            "--connections" => self.connections = number()?,
            "--seconds" => self.duration = Duration::from_secs(number()?),
            "--elements" => self.elements = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--hostile" => self.hostile_percent = number()?,
            "--disconnects" => self.disconnect_percent = number()?,
            "--seed" => self.seed = number()?,
            "--rate" => self.rate = Some(rate(value)?),
            "--times" => self.times = Some(arrivals::read_times(Path::new(value))?),
            "--batched" => self.is_batched = value == "yes",
            "--samples" => self.samples = Some(PathBuf::from(value)),
            "--refusals" => self.expects_refusals = value == "yes",
            _ => return Err(format!("there is no option {name}")),
        }
        Ok(())
    }
}

fn rate(value: &str) -> Result<f64, String> {
    let number = value.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    number.ok_or_else(|| String::from("--rate takes a positive number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split(' ').map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_replace_defaults() {
        let options =
            parse("--grpc 127.0.0.1:1 --seconds 2 --refusals yes --rate 0.5 --batched yes");
        let options = options.unwrap();
        assert_eq!(options.protocol, Protocol::Grpc);
        assert_eq!(options.duration, Duration::from_secs(2));
        assert!(options.expects_refusals);
        assert_eq!(options.rate, Some(0.5));
        assert_eq!(options.connections, 256);
        assert_eq!(options.shape(), [1, 64]);
    }

    #[test]
    fn mistakes_are_named() {
        for (line, named) in [
            ("--http", "missing"),
            ("--ftp 127.0.0.1:1", "--ftp"),
            ("--http here", "here"),
            ("--http 127.0.0.1:1 --seconds", "--seconds"),
            ("--http 127.0.0.1:1 --seconds x", "--seconds"),
            ("--http 127.0.0.1:1 --rate 0", "--rate"),
            ("--http 127.0.0.1:1 --speed 1", "--speed"),
            ("--http 127.0.0.1:1 --times /no/file", "/no/file"),
        ] {
            assert!(parse(line).unwrap_err().contains(named), "{line}");
        }
    }
}
