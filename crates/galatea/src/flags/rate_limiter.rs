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
        let shape = "<resource_name>:<count>:<device> or <resource_name>:<count>";
        let (name, numbers) = value::pair(value, ':', shape)?;
        let (count, device) = match numbers.split_once(':') {
            None => (numbers, None),
            Some((count, device)) => (count, Some(value::number(device)?)),
        };
        let (name, count) = (String::from(name), value::number(count)?);
        settings.rate_limit_resources.push(ResourceLimit { name, count, device });
        Ok(())
    },
};
