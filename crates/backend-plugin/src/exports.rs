//! The list of functions that this crate exports, used to check that plug-ins find them.

use galatea_c_objects::exports::ExportedFunction;

/// All functions of tritonbackend.h, tritoncache.h and tritonrepoagent.h that a server provides.
pub(crate) fn all() -> Vec<ExportedFunction> {
    [
        crate::agent::functions::exported(),
        crate::attributes::exported(),
        crate::backend::exported(),
        crate::cache::entry::exported(),
        crate::instance::exported(),
        crate::memory::exported(),
        crate::model::exported(),
        crate::request::functions::exported(),
        crate::request::input::exported(),
        crate::request::state::exported(),
        crate::response::functions::exported(),
        crate::response::factory::exported(),
        crate::response::output::exported(),
        crate::statistics::exported(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use galatea_abi::{backend, cache, repoagent};

    #[test]
    fn every_declared_function_is_exported() {
        let exported: BTreeSet<&str> = super::all().iter().map(|function| function.name).collect();
        let lists = [backend::PROVIDED, cache::PROVIDED, repoagent::PROVIDED].concat();
        assert_eq!(super::all().len(), lists.len());
        assert_eq!(exported, lists.into_iter().collect());
    }
}
