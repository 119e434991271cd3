//! The HTTP endpoint.

use super::value::{self, Refusal};
use super::{Flag, Group, tls};

pub(super) const GROUP: Group = Group {
    title: "HTTP",
    flags: &[
        ALLOW_HTTP,
        HTTP_ADDRESS,
        HTTP_PORT,
        REUSE_HTTP_PORT,
        HTTP_THREAD_COUNT,
        HTTP_MAX_INPUT_SIZE,
        HTTP_HEADER_FORWARD_PATTERN,
        HTTP_RESTRICTED_API,
        ALLOW_DASHBOARD,
        DASHBOARD_HOST,
        ALLOW_TRAFFIC_RECORDING,
        HTTP_USE_SSL,
        HTTP_USE_SSL_MUTUAL,
        HTTP_SERVER_CERT,
        HTTP_SERVER_KEY,
        HTTP_ROOT_CERT,
    ],
};

const ALLOW_HTTP: Flag = Flag {
    name: "allow-http",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to listen for HTTP requests.",
    apply: |settings, value| {
        settings.http.allow = value::boolean(value)?;
        Ok(())
    },
};

const HTTP_ADDRESS: Flag = Flag {
    name: "http-address",
    argument: Some("string"),
    default: "0.0.0.0",
    help: "The address to listen on for HTTP.",
    apply: |settings, value| {
        settings.http.address = value.to_owned();
        Ok(())
    },
};

const HTTP_PORT: Flag = Flag {
    name: "http-port",
    argument: Some("integer"),
    default: "8000",
    help: "The port to listen on for HTTP; 0 lets the system choose one.",
    apply: |settings, value| {
        settings.http.port = value::port(settings, "http-port", value)?;
        Ok(())
    },
};

const REUSE_HTTP_PORT: Flag = Flag {
    name: "reuse-http-port",
    argument: Some("boolean"),
    default: "false",
    help: "Whether several servers may listen on the same HTTP port, each of them with this \
           flag. They should serve the same models.",
    apply: |settings, value| {
        settings.http.reuse_port = value::boolean(value)?;
        Ok(())
    },
};

const HTTP_THREAD_COUNT: Flag = Flag {
    name: "http-thread-count",
    argument: Some("integer"),
    default: "8",
    help: "At most this many threads serve the endpoints, gRPC included, and never more than \
           the machine has processors.",
    apply: |settings, value| {
        // Triton serves with 0 too, and ends with an error below.
        let threads: usize = value::number(value)?;
        settings.http_threads = threads.max(1);
        Ok(())
    },
};

const HTTP_MAX_INPUT_SIZE: Flag = Flag {
    name: "http-max-input-size",
    argument: Some("integer"),
    default: "67108864",
    help: "The longest JSON of an HTTP request, the longest tensor in JSON, the longest raw or \
           inflated body, in bytes. Binary tensors are limited by --memory-limit alone.",
    apply: |settings, value| {
        let bytes: i64 = value::number(value)?;
        settings.http_input_bytes_max =
            u64::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| {
                Refusal(String::from("Error: --http-max-input-size must be greater than 0."))
            })?;
        Ok(())
    },
};

const HTTP_HEADER_FORWARD_PATTERN: Flag = Flag {
    name: "http-header-forward-pattern",
    argument: Some("string"),
    default: "",
    help: "Headers of inference requests in whose name this regular expression is found become \
           parameters. Upper and lower case are the same unless it begins with (?-i).",
    apply: |settings, value| {
        settings.http_header_forward = value::header_pattern(value)?;
        Ok(())
    },
};

const HTTP_RESTRICTED_API: Flag = Flag {
    name: "http-restricted-api",
    argument: Some("string:string=string"),
    default: "",
    help: "APIs,…:KEY=VALUE refuses requests to these APIs, unless they have the header KEY with \
           this value. Each API may be named once; the flag may be repeated. APIs: health, \
           metadata, inference, shared-memory, model-config, model-repository, statistics, trace, \
           logging.",
    apply: |settings, value| {
        value::restriction(&mut settings.http_rules, value, "", "http-restricted-api", "api")
    },
};

const ALLOW_DASHBOARD: Flag = Flag {
    name: "allow-dashboard",
    argument: Some("boolean"),
    default: "false",
    help: "Whether the HTTP endpoint has a page that shows in a browser what models, queues and \
           instances do: /dashboard.",
    apply: |settings, value| {
        settings.dashboard = value::boolean(value)?;
        Ok(())
    },
};

const DASHBOARD_HOST: Flag = Flag {
    name: "dashboard-host",
    argument: Some("string"),
    default: "",
    help: "A further host name under which the page is served; the flag may be repeated. Without \
           it these are addresses, localhost, the name of the machine and that of --http-address: \
           a site of another name can't have its own lead here and read what the server does.",
    apply: |settings, value| {
        if value.is_empty() || value.contains([':', '/', ' ']) {
            return Err(Refusal(format!(
                "expected a host name without scheme and port, such as models.example; got {value}"
            )));
        }
        settings.dashboard_hosts.push(value.to_owned());
        Ok(())
    },
};

const ALLOW_TRAFFIC_RECORDING: Flag = Flag {
    name: "allow-traffic-recording",
    argument: Some("boolean"),
    default: "false",
    help: "Whether clients of the HTTP endpoint may record when requests to a model arrive, how \
           large they are and how they are executed: galatea record. Contents of tensors are not \
           recorded.",
    apply: |settings, value| {
        settings.traffic_recording = value::boolean(value)?;
        Ok(())
    },
};

const HTTP_USE_SSL: Flag = Flag {
    name: "http-use-ssl",
    argument: Some("boolean"),
    default: "false",
    help: "Whether HTTP is encrypted with TLS.",
    apply: |settings, value| {
        settings.http.tls.set_use_ssl(value::boolean(value)?);
        Ok(())
    },
};

const HTTP_USE_SSL_MUTUAL: Flag = Flag {
    name: "http-use-ssl-mutual",
    argument: Some("boolean"),
    default: "",
    help: "Whether clients must show a certificate that --http-root-cert has signed. It turns \
           TLS on, whatever --http-use-ssl says; the value false turns it on without that demand.",
    apply: |settings, value| {
        settings.http.tls.set_use_ssl_mutual(value::boolean(value)?);
        Ok(())
    },
};

const HTTP_SERVER_CERT: Flag = Flag {
    name: "http-server-cert",
    argument: Some("string"),
    default: "",
    help: "The PEM file with the server's certificate, followed by those of its issuers. It and \
           the next two are only read with --http-use-ssl, and anew when they change.",
    apply: |settings, value| {
        settings.http.tls.certificate = tls::path(value);
        Ok(())
    },
};

const HTTP_SERVER_KEY: Flag = Flag {
    name: "http-server-key",
    argument: Some("string"),
    default: "",
    help: "The PEM file with the certificate's key, which is not encrypted.",
    apply: |settings, value| {
        settings.http.tls.key = tls::path(value);
        Ok(())
    },
};

const HTTP_ROOT_CERT: Flag = Flag {
    name: "http-root-cert",
    argument: Some("string"),
    default: "",
    help: "The PEM file with the certificates that sign those of clients.",
    apply: |settings, value| {
        settings.http.tls.roots = tls::path(value);
        Ok(())
    },
};
