//! Flags for the gRPC endpoint.

use galatea_grpc::CompressionLevel;

use super::flag::{Flag, no_default};
use super::grpc_connections;
use super::value::{self, InvalidValue};
use super::{Group, Settings};

pub(super) const GROUP: Group = Group {
    title: "GRPC",
    flags: &[
        &[
            Flag::boolean("allow-grpc", "Whether to listen for gRPC requests.", |settings| {
                &mut settings.grpc.allow
            }),
            Flag::text("grpc-address", "The address to listen on for gRPC.", |settings| {
                &mut settings.grpc.address
            }),
            Flag::port(
                "grpc-port",
                "The port to listen on for gRPC; 0 lets the system choose one.",
                |settings| &mut settings.grpc.port,
            ),
            Flag::boolean(
                "reuse-grpc-port",
                "Whether several servers may listen on the same gRPC port, each of them with this \
             flag. They should serve the same models.",
                |settings| &mut settings.grpc.reuse_port,
            ),
            Flag::pattern(
                "grpc-header-forward-pattern",
                "Metadata in whose name this regular expression is found becomes parameters of the \
             call's requests. Upper and lower case are the same unless it begins with (?-i).",
                |settings| &mut settings.grpc_header_forward,
            ),
            Flag::other(
                "grpc-infer-thread-count",
                "integer",
                |_| String::from("2"),
                "Threads for gRPC inference in Triton, from 2 to 128. Checked alone: the threads of \
             --http-thread-count serve gRPC too.",
                |_, value| match value::number::<i32>(value)? {
                    2..=128 => Ok(()),
                    _ => Err(InvalidValue(String::from(
                        "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
                    ))),
                },
            ),
            Flag::other(
                "grpc-infer-allocation-pool-size",
                "integer",
                |_| String::from("8"),
                "How many request states Triton keeps for reuse. Checked alone: none are kept.",
                |_, value| value::number::<i32>(value).map(|_| ()),
            ),
            Flag::other(
                "grpc-max-response-pool-size",
                "integer",
                response_pool_size,
                "How many responses to one request of a stream may wait for the client before the \
             model has to wait. There are other limits for the stream as a whole.",
                grpc_max_response_pool_size,
            ),
            Flag::decision(
                "grpc-use-ssl",
                "Whether gRPC is encrypted with TLS.",
                |settings| Some(settings.grpc.tls.is_on()),
                |settings, is_on| settings.grpc.tls.set_use_ssl(is_on),
            ),
            Flag::decision(
                "grpc-use-ssl-mutual",
                "Whether clients must show a certificate that --grpc-root-cert has signed. It turns \
             TLS on, whatever --grpc-use-ssl says; the value false turns it on without that \
             demand.",
                |_| None,
                |settings, is_mutual| settings.grpc.tls.set_use_ssl_mutual(is_mutual),
            ),
            Flag::file(
                "grpc-server-cert",
                "The PEM file with the server's certificate, followed by those of its issuers. It \
             and the next two are only read with --grpc-use-ssl, and anew when they change.",
                |settings| &mut settings.grpc.tls.certificate,
            ),
            Flag::file(
                "grpc-server-key",
                "The PEM file with the certificate's key, which is not encrypted.",
                |settings| &mut settings.grpc.tls.key,
            ),
            Flag::file(
                "grpc-root-cert",
                "The PEM file with the certificates that sign those of clients.",
                |settings| &mut settings.grpc.tls.roots,
            ),
            Flag::other(
                "grpc-infer-response-compression-level",
                "string",
                compression_level,
                "Whether responses to inferences are compressed for clients that accept it: none; \
             low with gzip; medium and high with deflate. Clients that accept one of them get \
             that one.",
                grpc_infer_response_compression_level,
            ),
        ],
        grpc_connections::FLAGS,
        &[Flag::other(
            "grpc-restricted-protocol",
            "string:string=string",
            no_default,
            "PROTOCOLS,…:KEY=VALUE refuses calls of these protocols, unless their metadata have \
             this value under triton-grpc-protocol-KEY. The protocols and the rest are as in \
             --http-restricted-api. Metadata have names in lower case, and so must KEY.",
            |settings, value| {
                let (prefix, flag) = ("triton-grpc-protocol-", "grpc-restricted-protocol");
                value::restriction(&mut settings.grpc_rules, value, prefix, flag, "protocol")
            },
        )],
    ],
};

/// The default as a value of the flag; the largest number means no limit.
fn response_pool_size(settings: &Settings) -> String {
    let size = settings.grpc_response_pool_size;
    size.map_or_else(|| i32::MAX.to_string(), |size| size.to_string())
}

fn grpc_max_response_pool_size(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    let size: i32 = value::number(value)?;
    let Some(size) = usize::try_from(size).ok().filter(|size| *size > 0) else {
        return Err(InvalidValue(String::from(
            "Error: --grpc-max-response-pool-size must be greater than 0.",
        )));
    };
    settings.grpc_response_pool_size =
        usize::try_from(i32::MAX).is_ok_and(|unbounded| size < unbounded).then_some(size);
    Ok(())
}

/// The compression levels, by command-line name.
const COMPRESSION_LEVELS: [(&str, CompressionLevel); 4] = [
    ("none", CompressionLevel::None),
    ("low", CompressionLevel::Low),
    ("medium", CompressionLevel::Medium),
    ("high", CompressionLevel::High),
];

fn compression_level(settings: &Settings) -> String {
    let own = settings.grpc_response_compression;
    let named = COMPRESSION_LEVELS.iter().find(|(_, level)| *level == own);
    named.map_or_else(String::new, |(name, _)| String::from(*name))
}

fn grpc_infer_response_compression_level(
    settings: &mut Settings,
    value: &str,
) -> Result<(), InvalidValue> {
    let name = value.to_ascii_lowercase();
    let level = COMPRESSION_LEVELS.iter().find(|(known, _)| *known == name);
    let (_, level) = level.ok_or_else(|| {
        InvalidValue(String::from("invalid argument for --grpc_infer_response_compression_level"))
    })?;
    settings.grpc_response_compression = *level;
    Ok(())
}
