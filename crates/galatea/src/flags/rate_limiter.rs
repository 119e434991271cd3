//! Flags of the rate limiter.

use galatea_dispatch::ResourceLimit;

use super::value::{self, Refusal};
use super::{Flag, Group};

pub(super) const RATE_LIMITER: Group =
    Group { title: "Rate Limiter", flags: &[RATE_LIMIT, RATE_LIMIT_RESOURCE] };

const RATE_LIMIT: Flag = Flag {
    name: "rate-limit",
    argument: Some("string"),
    default: "off",
    help: "How models share resources. With execution_count an instance executes when the \
           resources are free that its rate_limiter block names, the one that executed least \
           first. With off the blocks are ignored.",
    apply: |settings, value| {
        settings.rate_limiting = match value.to_ascii_lowercase().as_str() {
            "off" => false,
            "execution_count" => true,
            _ => return Err(Refusal(String::from("invalid argument for --rate-limit"))),
        };
        Ok(())
    },
};

const RATE_LIMIT_RESOURCE: Flag = Flag {
    name: "rate-limit-resource",
    argument: Some("string:integer:integer"),
    default: "",
    help: "NAME:COUNT[:DEVICE] of a resource: on the device, or on each, or for the whole server \
           if models call it global. Without this flag there is as much of each as the instance \
           needs that needs most; with it, resources that are not named are not there. Counts \
           with --rate-limit=execution_count.",
    apply: |settings, value| {
        let parts: Vec<&str> = value.split(':').collect();
        let (name, count, device) = match parts[..] {
            [name, count] => (name, count, None),
            [name, count, device] => (name, count, Some(device)),
            _ => {
                return Err(Refusal(format!(
                    "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
                     '<resource_name>:<count>'. Got {value}"
                )));
            }
        };
        // Triton takes a negative count as a very large one, -1 as every device, -2 as the whole
        // server, and other negative numbers as devices that no instance has.
        let count = u32::try_from(value::number::<i32>(count)?).unwrap_or(u32::MAX);
        let device = match device.map(value::number::<i32>).transpose()? {
            None | Some(-1 | -2) => None,
            Some(device) => Some(u32::try_from(device).unwrap_or(u32::MAX)),
        };
        let name = String::from(name);
        settings.rate_limit_resources.push(ResourceLimit { name, count, device });
        Ok(())
    },
};
