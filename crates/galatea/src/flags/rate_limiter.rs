//! Flags for the rate limiter.

use galatea_dispatch::ResourceLimit;

use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};
use super::{Group, Settings};

pub(super) const RATE_LIMITER: Group = Group {
    title: "Rate Limiter",
    flags: &[&[
        Flag::other(
            "rate-limit",
            "string",
            |settings| String::from(if settings.rate_limiting { "execution_count" } else { "off" }),
            "How models share resources. With execution_count an instance executes when the \
             resources are free that its rate_limiter block names, the one that executed least \
             first. With off the blocks are ignored.",
            rate_limit,
        ),
        Flag::other(
            "rate-limit-resource",
            "string:integer:integer",
            no_default,
            "NAME:COUNT[:DEVICE] of a resource: on the device, or on each, or for the whole \
             server if models call it global. Without this flag there is as much of each as the \
             instance needs that needs most; with it, resources that are not named are not there. \
             Counts with --rate-limit=execution_count.",
            rate_limit_resource,
        ),
    ]],
};

fn rate_limit(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    settings.rate_limiting = match value.to_ascii_lowercase().as_str() {
        "off" => false,
        "execution_count" => true,
        _ => return Err(InvalidValue(String::from("invalid argument for --rate-limit"))),
    };
    Ok(())
}

fn rate_limit_resource(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    let parts: Vec<&str> = value.split(':').collect();
    let (name, count, device) = match parts[..] {
        [name, count] => (name, count, None),
        [name, count, device] => (name, count, Some(device)),
        _ => {
            return Err(InvalidValue(format!(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
                 '<resource_name>:<count>'. Got {value}"
            )));
        }
    };
    // Triton treats a negative count as a very large one. As a device, -1 means every device, -2
    // the whole server, and any other negative number a device that no instance has.
    let count = u32::try_from(value::number::<i32>(count)?).unwrap_or(u32::MAX);
    let device = match device.map(value::number::<i32>).transpose()? {
        None | Some(-1 | -2) => None,
        Some(device) => Some(u32::try_from(device).unwrap_or(u32::MAX)),
    };
    let name = String::from(name);
    settings.rate_limit_resources.push(ResourceLimit { name, count, device });
    Ok(())
}
