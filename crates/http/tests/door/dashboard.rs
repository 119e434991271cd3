//! The dashboard: its page and its stream, and the limits on what they cost and reveal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use galatea_control::{
    ActivityMonitor, ActivityReading, ActivityRecording, ModelStatistics, VersionActivity,
};
use galatea_dashboard::WATCHERS_MAX;
use galatea_gate::access::{AccessGate, AccessRules};
use galatea_http::{AllowedHosts, Dashboard, HttpOptions};
use galatea_infer::{AccessPass, api};
use galatea_stdx::testing::wait_until;

use crate::harness::{Client, Server};

/// Headers that make `plain` serve a request, and headers that make hyper serve it.
const SERVED_BY: [&str; 2] = ["", "TE: trailers\r\n"];
const WATCH: &str = "Galatea-Dashboard: 1\r\n";

/// A monitor that counts its recordings. Its model's name has this length.
#[derive(Clone, Debug, Default)]
struct FakeWatch {
    recordings: Arc<AtomicUsize>,
    name_length: usize,
}

struct FakeRecording(FakeWatch);

impl ActivityMonitor for FakeWatch {
    fn begin(&self, _: AccessPass<api::Statistics>) -> Option<Box<dyn ActivityRecording>> {
        self.recordings.fetch_add(1, Ordering::SeqCst);
        Some(Box::new(FakeRecording(self.clone())))
    }

    fn counters(&self) -> Vec<ModelStatistics> {
        Vec::new()
    }

    fn allows_model_control(&self) -> bool {
        true
    }
}

impl ActivityRecording for FakeRecording {
    fn read(&mut self) -> ActivityReading {
        let name = "m".repeat(self.0.name_length).into();
        let statistics = ModelStatistics { name, ..Default::default() };
        let version = VersionActivity { statistics, ..Default::default() };
        ActivityReading { versions: vec![version], ..ActivityReading::default() }
    }
}

impl Drop for FakeRecording {
    fn drop(&mut self) {
        self.0.recordings.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Watched {
    server: Server,
    watch: FakeWatch,
    dashboard: Dashboard,
}

impl Watched {
    fn start(watch: FakeWatch, rule: Option<&str>) -> Self {
        let dashboard = Dashboard::new(
            Arc::new(watch.clone()),
            Arc::default(),
            AllowedHosts::default(),
            Default::default(),
            Arc::new(Vec::new),
        );
        let mut rules = AccessRules::default();
        rule.into_iter().for_each(|rule| rules.add(rule, "").unwrap());
        let options = HttpOptions {
            dashboard: Some(dashboard.clone()),
            gate: AccessGate::new(rules),
            ..HttpOptions::default()
        };
        Self { server: Server::with(options), watch, dashboard }
    }

    fn new() -> Self {
        Self::start(FakeWatch::default(), None)
    }

    /// Returns a client that has requested the stream, along with the head of the response.
    fn watch(&self, headers: &str) -> (Client, String) {
        let mut client = self.server.connect();
        client.request("GET", "/dashboard/events", &format!("{WATCH}{headers}"), b"");
        let head = client.response_head();
        (client, head)
    }

    fn wait_for_recordings(&self, count: usize) {
        let recordings = || self.watch.recordings.load(Ordering::SeqCst);
        wait_until("the recordings have begun or ended", || recordings() == count);
    }
}

#[test]
fn a_server_without_the_flag_has_no_dashboard() {
    let server = Server::start();
    for path in ["/dashboard", "/dashboard/", "/dashboard/events"] {
        server.check("GET", path, "", 404, r#"{"error":"Not Found"}"#);
    }
}

#[test]
fn the_page_is_sent_as_the_client_accepts_it() {
    let watched = Watched::new();
    let page = galatea_dashboard::Page::new();
    let mut tags = Vec::new();
    for served_by in SERVED_BY {
        for path in ["/dashboard", "/dashboard/"] {
            let mut client = watched.server.connect();
            client.request("GET", path, served_by, b"");
            let response = client.response();
            assert_eq!((response.code, &response.body[..]), (200, &page.html()[..]));
            assert_eq!(
                response.header("Content-Security-Policy"),
                Some(page.content_security_policy())
            );
            assert_eq!(response.header("X-Content-Type-Options"), Some("nosniff"));
            assert_eq!(response.header("Content-Encoding"), None);
            tags.push(response.header("Etag").unwrap().to_owned());
        }
        let mut client = watched.server.connect();
        client.request("GET", "/dashboard", &format!("{served_by}Accept-Encoding: gzip\r\n"), b"");
        let response = client.response();
        assert_eq!(response.header("Content-Encoding"), Some("gzip"));
        assert_eq!(&response.body[..], &page.gzip()[..]);
    }
    assert!(tags.iter().all(|tag| tag == page.etag()), "{tags:?}");
}

#[test]
fn a_page_that_the_client_has_is_not_sent_again() {
    let watched = Watched::new();
    let page = galatea_dashboard::Page::new();
    for served_by in SERVED_BY {
        for known in
            [page.etag(), &format!("W/{}", page.etag()), &format!("\"a\", {}", page.etag())]
        {
            let mut client = watched.server.connect();
            client.request(
                "GET",
                "/dashboard",
                &format!("{served_by}If-None-Match: {known}\r\n"),
                b"",
            );
            let response = client.response();
            assert_eq!((response.code, response.body.len()), (304, 0), "{known}");
            assert_eq!(response.header("Content-Length"), None);
        }
        let mut client = watched.server.connect();
        client.request("GET", "/dashboard", &format!("{served_by}If-None-Match: \"a\"\r\n"), b"");
        assert_eq!(client.response().code, 200);
    }
}

#[test]
fn other_methods_and_paths_are_refused() {
    let watched = Watched::new();
    for path in ["/dashboard", "/dashboard/events"] {
        watched.server.check("POST", path, "{}", 405, r#"{"error":"Method Not Allowed"}"#);
    }
    for path in ["/dashboards", "/dashboard/x", "/dashboard/events/", "/dashboard//events"] {
        watched.server.check("GET", path, "", 404, r#"{"error":"Not Found"}"#);
    }
}

#[test]
fn a_recording_lives_as_long_as_its_watchers() {
    let watched = Watched::new();
    for served_by in SERVED_BY {
        let (mut first, head) = watched.watch(served_by);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Type: text/event-stream; charset=utf-8\r\n"), "{head}");
        assert!(head.contains("Cache-Control: no-store\r\n"), "{head}");
        assert!(head.to_lowercase().contains("connection: close\r\n"), "{head}");
        first.wait_for_bytes();
        let (second, _) = watched.watch(served_by);
        watched.wait_for_recordings(1);
        drop(first);
        watched.wait_for_recordings(1);
        drop(second);
        watched.wait_for_recordings(0);
    }
}

#[test]
fn the_stream_demands_a_header_that_other_sites_cannot_send() {
    let watched = Watched::new();
    let text = r#"{"error":"the stream of the dashboard demands the header 'galatea-dashboard'"}"#;
    watched.server.check("GET", "/dashboard/events", "", 400, text);
    assert_eq!(watched.watch.recordings.load(Ordering::SeqCst), 0);
}

#[test]
fn the_stream_belongs_to_the_statistics_and_the_page_to_all() {
    let watched = Watched::start(FakeWatch::default(), Some("statistics,health:key=secret"));
    let (_client, head) = watched.watch("");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert_eq!(watched.server.get("/dashboard").code, 200);
    for served_by in SERVED_BY {
        let (_client, head) = watched.watch(&format!("{served_by}key: secret\r\n"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
}

#[test]
fn one_watcher_too_many_is_refused() {
    let watched = Watched::new();
    let mut all: Vec<_> = (0..WATCHERS_MAX).map(|_| watched.watch("")).collect();
    assert!(all.iter().all(|(_, head)| head.starts_with("HTTP/1.1 200 ")));
    let (mut refused, _) = watched.watch("");
    refused.finish_sending();
    let (_, head) = watched.watch("");
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    all.pop();
    wait_until("a watcher is admitted", || !watched.watch("").1.starts_with("HTTP/1.1 503 "));
}

#[test]
fn streams_end_before_the_door_is_drained() {
    for served_by in SERVED_BY {
        let watched = Watched::new();
        let (mut client, _) = watched.watch(served_by);
        client.wait_for_bytes();
        watched.dashboard.close_streams();
        watched.server.door.begin_drain();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(watched.server.door.drained());
        let rest = client.rest();
        assert!(rest.ends_with("\r\n0\r\n\r\n"), "{rest}");
        watched.wait_for_recordings(0);
    }
}

#[test]
fn a_watcher_that_does_not_read_loses_events_and_holds_nothing_up() {
    let watched = Watched::start(FakeWatch { name_length: 4 << 20, ..FakeWatch::default() }, None);
    let (mut slow, _) = watched.watch("");
    let (mut quick, _) = watched.watch("");
    // The sockets hold at most 10 MB, so three events of this size are on their way to the slow
    // client, and four wait. In addition to a greeting and a history, the quick client has seen
    // ten.
    for _ in 0..12 {
        assert!(quick.chunk().is_some());
    }
    let mut events = (0..12).map(|_| slow.chunk().unwrap());
    let lost = events.find(|event| event.starts_with("event: lost\n")).unwrap();
    assert!(lost.contains("\"events\":"), "{lost}");
    watched.server.check("GET", "/v2/health/live", "", 200, "");
}
