//! The check for ports that several endpoints use.

use super::{DoorSettings, Settings};

/// An endpoint that the flags request.
struct RequestedEndpoint<'a> {
    name: &'static str,
    address: &'a str,
    port: u16,
    /// The range of ports that other endpoints at its address may use.
    others: Option<(i32, i32)>,
}

/// Checks that no two endpoints share an address and a port, comparing them as written. Port 0 is a
/// different port for each endpoint.
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    let clouds = &settings.clouds;
    let doors = [
        ("HTTP", &settings.http, settings.http.address.as_str(), None),
        ("GRPC", &settings.grpc, settings.grpc.address.as_str(), None),
        ("metrics", &settings.metrics, settings.metrics_address(), None),
        ("OpenAI", &settings.openai.door, settings.openai.door.address.as_str(), None),
        ("SageMaker", &clouds.sagemaker, &clouds.sagemaker.address, clouds.sagemaker_safe_ports),
        ("Vertex AI", &clouds.vertex_ai, &clouds.vertex_ai.address, None),
    ];
    let doors = doors.into_iter().filter(|(_, door, ..)| door.allow);
    let listening = |(name, door, address, others): (_, &DoorSettings, _, _)| RequestedEndpoint {
        name,
        address,
        port: door.port,
        others,
    };
    let doors: Vec<_> = doors.map(listening).collect();
    for (index, door) in doors.iter().enumerate() {
        // A pair is compared once, unless one of the two restricts the allowed ports.
        let first = if door.others.is_some() { 0 } else { index + 1 };
        for (other_index, other) in doors.iter().enumerate().skip(first) {
            if other_index != index && door.address == other.address {
                compare(door, other)?;
            }
        }
    }
    Ok(())
}

fn compare(door: &RequestedEndpoint<'_>, other: &RequestedEndpoint<'_>) -> Result<(), String> {
    if let Some((first, last)) = door.others
        && !(first..=last).contains(&i32::from(other.port))
    {
        return Err(format!(
            "The server cannot listen to {} requests at port {}, allowed port range is [{first}, \
             {last}]",
            other.name, other.port
        ));
    }
    if door.port == other.port && door.port != 0 {
        return Err(format!(
            "The server cannot listen to {} requests and {} requests at the same address and \
             port {}:{}",
            door.name, other.name, door.address, door.port
        ));
    }
    Ok(())
}
