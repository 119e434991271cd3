//! The warning that other machines may load code.

use std::net::IpAddr;

use galatea_gate::access::{AccessGate, AccessRules, ApiCategory};

use super::{DoorSettings, Settings};
use crate::model_code::{self, ModelCodePermission};

/// Returns a warning if other machines may load code.
pub(crate) fn open_loads(settings: &Settings) -> Option<String> {
    if settings.model_code == ModelCodePermission::Refused
        || !settings.control_mode.allows_orders()
        || settings.tenants_file.is_some()
    {
        return None;
    }
    let doors = [
        ("HTTP", &settings.http, &settings.http_rules),
        ("gRPC", &settings.grpc, &settings.grpc_rules),
        ("Vertex AI", &settings.clouds.vertex_ai, &settings.http_rules),
    ];
    let is_open = |door: &DoorSettings, rules: &AccessRules| {
        let is_local = door.address == "localhost"
            || door.address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let gate = AccessGate::new(rules.clone());
        let is_restricted = gate.admit(ApiCategory::ModelRepository, |_| None).is_err();
        door.allow && !is_local && !is_restricted && !door.tls.is_mutual
    };
    let open = doors.into_iter().filter(|(_, door, rules)| is_open(door, rules));
    let open: Vec<String> =
        open.map(|(name, door, _)| format!("{name} at {}", door.address)).collect();
    (!open.is_empty()).then(|| {
        format!(
            "clients of {} may load models with code of their own, which runs as this server's \
             user: restrict the API model-repository, or set --{}=false",
            open.join(" and "),
            model_code::FLAG
        )
    })
}
