//! The gRPC endpoint.

use galatea_grpc::CompressionLevel;

use super::grpc_connections::{
    GRPC_HTTP2_MAX_PING_STRIKES, GRPC_HTTP2_MAX_PINGS_WITHOUT_DATA,
    GRPC_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA, GRPC_KEEPALIVE_PERMIT_WITHOUT_CALLS,
    GRPC_KEEPALIVE_TIME, GRPC_KEEPALIVE_TIMEOUT, GRPC_MAX_CONNECTION_AGE,
    GRPC_MAX_CONNECTION_AGE_GRACE,
};
use super::value::{self, Refusal};
use super::{Flag, Group, tls};

pub(super) const GROUP: Group = Group {
    title: "GRPC",
    flags: &[
        ALLOW_GRPC,
        GRPC_ADDRESS,
        GRPC_PORT,
        REUSE_GRPC_PORT,
        GRPC_HEADER_FORWARD_PATTERN,
        GRPC_INFER_THREAD_COUNT,
        GRPC_INFER_ALLOCATION_POOL_SIZE,
        GRPC_MAX_RESPONSE_POOL_SIZE,
        GRPC_USE_SSL,
        GRPC_USE_SSL_MUTUAL,
        GRPC_SERVER_CERT,
        GRPC_SERVER_KEY,
        GRPC_ROOT_CERT,
        GRPC_INFER_RESPONSE_COMPRESSION_LEVEL,
        GRPC_KEEPALIVE_TIME,
        GRPC_KEEPALIVE_TIMEOUT,
        GRPC_KEEPALIVE_PERMIT_WITHOUT_CALLS,
        GRPC_HTTP2_MAX_PINGS_WITHOUT_DATA,
        GRPC_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA,
        GRPC_HTTP2_MAX_PING_STRIKES,
        GRPC_MAX_CONNECTION_AGE,
        GRPC_MAX_CONNECTION_AGE_GRACE,
        GRPC_RESTRICTED_PROTOCOL,
    ],
};

const ALLOW_GRPC: Flag = Flag {
    name: "allow-grpc",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to listen for gRPC requests.",
    apply: |settings, value| {
        settings.grpc.allow = value::boolean(value)?;
        Ok(())
    },
};

const GRPC_ADDRESS: Flag = Flag {
    name: "grpc-address",
    argument: Some("string"),
    default: "0.0.0.0",
    help: "The address to listen on for gRPC.",
    apply: |settings, value| {
        settings.grpc.address = value.to_owned();
        Ok(())
    },
};

const GRPC_PORT: Flag = Flag {
    name: "grpc-port",
    argument: Some("integer"),
    default: "8001",
    help: "The port to listen on for gRPC; 0 lets the system choose one.",
    apply: |settings, value| {
        settings.grpc.port = value::port(settings, "grpc-port", value)?;
        Ok(())
    },
};

const REUSE_GRPC_PORT: Flag = Flag {
    name: "reuse-grpc-port",
    argument: Some("boolean"),
    default: "false",
    help: "Whether several servers may listen on the same gRPC port, each of them with this \
           flag. They should serve the same models.",
    apply: |settings, value| {
        settings.grpc.reuse_port = value::boolean(value)?;
        Ok(())
    },
};

const GRPC_HEADER_FORWARD_PATTERN: Flag = Flag {
    name: "grpc-header-forward-pattern",
    argument: Some("string"),
    default: "",
    help: "Metadata in whose name this regular expression is found becomes parameters of the \
           call's requests. Upper and lower case are the same unless it begins with (?-i).",
    apply: |settings, value| {
        settings.grpc_header_forward = value::header_pattern(value)?;
        Ok(())
    },
};

const GRPC_INFER_THREAD_COUNT: Flag = Flag {
    name: "grpc-infer-thread-count",
    argument: Some("integer"),
    default: "2",
    help: "Threads for gRPC inference in Triton, from 2 to 128. Checked alone: the threads of \
           --http-thread-count serve gRPC too.",
    apply: |_, value| match value::number::<i32>(value)? {
        2..=128 => Ok(()),
        _ => Err(Refusal(String::from(
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        ))),
    },
};

const GRPC_INFER_ALLOCATION_POOL_SIZE: Flag = Flag {
    name: "grpc-infer-allocation-pool-size",
    argument: Some("integer"),
    default: "8",
    help: "How many request states Triton keeps for reuse. Checked alone: none are kept.",
    apply: |_, value| value::number::<i32>(value).map(|_| ()),
};

const GRPC_MAX_RESPONSE_POOL_SIZE: Flag = Flag {
    name: "grpc-max-response-pool-size",
    argument: Some("integer"),
    default: "2147483647",
    help: "How many responses to one request of a stream may wait for the client before the \
           model has to wait. There are other limits for the stream as a whole.",
    apply: |settings, value| {
        let size: i32 = value::number(value)?;
        let Some(size) = usize::try_from(size).ok().filter(|size| *size > 0) else {
            return Err(Refusal(String::from(
                "Error: --grpc-max-response-pool-size must be greater than 0.",
            )));
        };
        settings.grpc_response_pool_size =
            usize::try_from(i32::MAX).is_ok_and(|unbounded| size < unbounded).then_some(size);
        Ok(())
    },
};

const GRPC_USE_SSL: Flag = Flag {
    name: "grpc-use-ssl",
    argument: Some("boolean"),
    default: "false",
    help: "Whether gRPC is encrypted with TLS.",
    apply: |settings, value| {
        settings.grpc.tls.set_use_ssl(value::boolean(value)?);
        Ok(())
    },
};

const GRPC_USE_SSL_MUTUAL: Flag = Flag {
    name: "grpc-use-ssl-mutual",
    argument: Some("boolean"),
    default: "",
    help: "Whether clients must show a certificate that --grpc-root-cert has signed. It turns \
           TLS on, whatever --grpc-use-ssl says; the value false turns it on without that demand.",
    apply: |settings, value| {
        settings.grpc.tls.set_use_ssl_mutual(value::boolean(value)?);
        Ok(())
    },
};

const GRPC_SERVER_CERT: Flag = Flag {
    name: "grpc-server-cert",
    argument: Some("string"),
    default: "",
    help: "The PEM file with the server's certificate, followed by those of its issuers. It and \
           the next two are only read with --grpc-use-ssl, and anew when they change.",
    apply: |settings, value| {
        settings.grpc.tls.certificate = tls::path(value);
        Ok(())
    },
};

const GRPC_SERVER_KEY: Flag = Flag {
    name: "grpc-server-key",
    argument: Some("string"),
    default: "",
    help: "The PEM file with the certificate's key, which is not encrypted.",
    apply: |settings, value| {
        settings.grpc.tls.key = tls::path(value);
        Ok(())
    },
};

const GRPC_ROOT_CERT: Flag = Flag {
    name: "grpc-root-cert",
    argument: Some("string"),
    default: "",
    help: "The PEM file with the certificates that sign those of clients.",
    apply: |settings, value| {
        settings.grpc.tls.roots = tls::path(value);
        Ok(())
    },
};

const GRPC_INFER_RESPONSE_COMPRESSION_LEVEL: Flag = Flag {
    name: "grpc-infer-response-compression-level",
    argument: Some("string"),
    default: "none",
    help: "Whether responses to inferences are compressed for clients that accept it: none; low \
           with gzip; medium and high with deflate. Clients that accept one of them get that one.",
    apply: |settings, value| {
        settings.grpc_response_compression = match value.to_ascii_lowercase().as_str() {
            "none" => CompressionLevel::None,
            "low" => CompressionLevel::Low,
            "medium" => CompressionLevel::Medium,
            "high" => CompressionLevel::High,
            _ => {
                return Err(Refusal(String::from(
                    "invalid argument for --grpc_infer_response_compression_level",
                )));
            }
        };
        Ok(())
    },
};

const GRPC_RESTRICTED_PROTOCOL: Flag = Flag {
    name: "grpc-restricted-protocol",
    argument: Some("string:string=string"),
    default: "",
    help: "PROTOCOLS,…:KEY=VALUE refuses calls of these protocols, unless their metadata have \
           this value under triton-grpc-protocol-KEY. The protocols and the rest are as in \
           --http-restricted-api. Metadata have names in lower case, and so must KEY.",
    apply: |settings, value| {
        let (prefix, flag) = ("triton-grpc-protocol-", "grpc-restricted-protocol");
        value::restriction(&mut settings.grpc_rules, value, prefix, flag, "protocol")
    },
};
