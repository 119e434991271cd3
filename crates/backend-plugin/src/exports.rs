//! What this crate exports, for whoever checks that plug-ins find it.

/// An exported function.
#[derive(Copy, Clone, Debug)]
pub struct Export {
    /// Its name.
    pub name: &'static str,
    /// Its address, as a number.
    pub address: usize,
}

impl Export {
    pub(crate) fn new(name: &'static str, function: *const ()) -> Self {
        Self { name, address: function.addr() }
    }
}

/// Every function of tritonbackend.h, tritoncache.h and tritonrepoagent.h that a server
/// provides.
#[must_use]
pub fn all() -> Vec<Export> {
    [
        crate::agent::functions::exported(),
        crate::attributes::exported(),
        crate::backend::exported(),
        crate::cache::exported(),
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
    fn nothing_that_the_headers_declare_is_missing() {
        let exported: BTreeSet<&str> = super::all().iter().map(|export| export.name).collect();
        let lists = [backend::PROVIDED, cache::PROVIDED, repoagent::PROVIDED].concat();
        assert_eq!(super::all().len(), lists.len());
        assert_eq!(exported, lists.into_iter().collect());
    }
}
