//! Flags for the HTTP endpoint.

use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};
use super::{Group, Settings};

pub(super) const GROUP: Group = Group {
    title: "HTTP",
    flags: &[&[
        Flag::boolean("allow-http", "Whether to listen for HTTP requests.", |settings| {
            &mut settings.http.allow
        }),
        Flag::text("http-address", "The address to listen on for HTTP.", |settings| {
            &mut settings.http.address
        }),
        Flag::port(
            "http-port",
            "The port to listen on for HTTP; 0 lets the system choose one.",
            |settings| &mut settings.http.port,
        ),
        Flag::boolean(
            "reuse-http-port",
            "Whether several servers may listen on the same HTTP port, each of them with this \
             flag. They should serve the same models.",
            |settings| &mut settings.http.reuse_port,
        ),
        Flag::threads(
            "http-thread-count",
            "At most this many threads serve the endpoints, gRPC included, and never more than \
             the machine has processors.",
            |settings| &mut settings.http_threads,
        ),
        Flag::other(
            "http-max-input-size",
            "integer",
            |settings| settings.http_input_bytes_max.to_string(),
            "The longest JSON of an HTTP request, the longest tensor in JSON, the longest raw or \
             inflated body, in bytes. Binary tensors are limited by --memory-limit alone.",
            http_max_input_size,
        ),
        Flag::pattern(
            "http-header-forward-pattern",
            "Headers of inference requests in whose name this regular expression is found become \
             parameters. Upper and lower case are the same unless it begins with (?-i).",
            |settings| &mut settings.http_header_forward,
        ),
        Flag::other(
            "http-restricted-api",
            "string:string=string",
            no_default,
            "APIs,…:KEY=VALUE refuses requests to these APIs, unless they have the header KEY \
             with this value. Each API may be named once; the flag may be repeated. APIs: health, \
             metadata, inference, shared-memory, model-config, model-repository, statistics, \
             trace, logging.",
            |settings, value| {
                value::restriction(
                    &mut settings.http_rules,
                    value,
                    "",
                    "http-restricted-api",
                    "api",
                )
            },
        ),
        Flag::boolean(
            "allow-dashboard",
            "Whether the HTTP endpoint has a page that shows in a browser what models, queues \
             and instances do: /dashboard.",
            |settings| &mut settings.dashboard,
        ),
        Flag::other(
            "dashboard-host",
            "string",
            no_default,
            "A further host name under which the page is served; the flag may be repeated. \
             Without it these are addresses, localhost, the name of the machine and that of \
             --http-address: a site of another name can't have its own lead here and read what \
             the server does.",
            dashboard_host,
        ),
        Flag::boolean(
            "allow-traffic-recording",
            "Whether clients of the HTTP endpoint may record when requests to a model arrive, \
             how large they are and how they are executed: galatea record. Contents of tensors \
             are not recorded.",
            |settings| &mut settings.traffic_recording,
        ),
        Flag::decision(
            "http-use-ssl",
            "Whether HTTP is encrypted with TLS.",
            |settings| Some(settings.http.tls.is_on()),
            |settings, is_on| settings.http.tls.set_use_ssl(is_on),
        ),
        Flag::decision(
            "http-use-ssl-mutual",
            "Whether clients must show a certificate that --http-root-cert has signed. It turns \
             TLS on, whatever --http-use-ssl says; the value false turns it on without that \
             demand.",
            |_| None,
            |settings, is_mutual| settings.http.tls.set_use_ssl_mutual(is_mutual),
        ),
        Flag::file(
            "http-server-cert",
            "The PEM file with the server's certificate, followed by those of its issuers. It \
             and the next two are only read with --http-use-ssl, and anew when they change.",
            |settings| &mut settings.http.tls.certificate,
        ),
        Flag::file(
            "http-server-key",
            "The PEM file with the certificate's key, which is not encrypted.",
            |settings| &mut settings.http.tls.key,
        ),
        Flag::file(
            "http-root-cert",
            "The PEM file with the certificates that sign those of clients.",
            |settings| &mut settings.http.tls.roots,
        ),
    ]],
};

fn http_max_input_size(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    let bytes: i64 = value::number(value)?;
    settings.http_input_bytes_max =
        u64::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| {
            InvalidValue(String::from("Error: --http-max-input-size must be greater than 0."))
        })?;
    Ok(())
}

fn dashboard_host(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    if value.is_empty() || value.contains([':', '/', ' ']) {
        return Err(InvalidValue(format!(
            "expected a host name without scheme and port, such as models.example; got {value}"
        )));
    }
    settings.dashboard_hosts.push(value.to_owned());
    Ok(())
}
