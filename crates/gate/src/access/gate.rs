//! A door's gate.

use std::hint::black_box;
use std::sync::Arc;

use super::category::ApiCategory;
use super::pass::AccessGrant;
use super::rules::AccessRules;
use super::tenant::{TenantDirectory, TenantRefusal, key_of};

/// Admits callers according to the rules for a door's protocol and, if there are tenants, by their
/// keys.
#[derive(Clone, Debug, Default)]
pub struct AccessGate {
    /// `None` if nothing is restricted, so an open gate costs only one comparison.
    restrictions: Option<Box<Restrictions>>,
}

#[derive(Clone, Debug, Default)]
struct Restrictions {
    rules: AccessRules,
    tenants: Option<Arc<dyn TenantDirectory>>,
}

/// The refusal of a caller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AccessRefusal<'g> {
    /// The caller lacks the header that a rule requires.
    Header {
        /// The header's name.
        required: &'g str,
    },
    /// The caller's key doesn't allow the request.
    Tenant(TenantRefusal),
}

impl AccessGate {
    /// Makes a gate with these rules.
    pub fn new(rules: AccessRules) -> Self {
        let restrictions = Restrictions { rules, tenants: None };
        Self { restrictions: (!restrictions.rules.is_empty()).then(|| Box::new(restrictions)) }
    }

    /// Requires the key of a tenant, in addition to the rules, for every category but
    /// [`ApiCategory::Health`]: probes have no keys.
    #[must_use]
    pub fn with_tenants(mut self, tenants: Option<Arc<dyn TenantDirectory>>) -> Self {
        if tenants.is_some() {
            self.restrictions.get_or_insert_default().tenants = tenants;
        }
        self
    }

    /// Returns true if the gate admits all callers, so that no headers need to be collected.
    pub const fn is_unrestricted(&self) -> bool {
        self.restrictions.is_none()
    }

    /// Admits a caller to the APIs of a category if the category has no rule, or if `header` finds
    /// the value that the rule requires; and, if there are tenants, if `header` finds a key that
    /// allows the category. `header` is called only if something is restricted.
    ///
    /// The time taken does not reveal how much of a wrong value is correct.
    ///
    /// # Errors
    ///
    /// A refusal that contains the header's name, or the reason why the key is refused.
    #[inline]
    pub fn admit<'h>(
        &self,
        category: ApiCategory,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<AccessGrant, AccessRefusal<'_>> {
        match &self.restrictions {
            None => Ok(AccessGrant::new(category, None)),
            Some(restrictions) => restrictions.admit(category, header),
        }
    }

    /// Counts an inference request of an admitted caller against the limits of its tenant.
    ///
    /// # Errors
    ///
    /// The exceeded limit.
    #[inline]
    pub fn count_request(&self, grant: AccessGrant) -> Result<(), TenantRefusal> {
        let directory = self.restrictions.as_ref().and_then(|all| all.tenants.as_ref());
        match (grant.tenant(), directory) {
            (Some(tenant), Some(directory)) => directory.count_request(tenant),
            (None, _) | (_, None) => Ok(()),
        }
    }
}

impl Restrictions {
    fn admit<'h>(
        &self,
        category: ApiCategory,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<AccessGrant, AccessRefusal<'_>> {
        if let Some(rule) = self.rules.get(category) {
            let is_admitted =
                header(&rule.header).is_some_and(|value| are_equal(value, rule.value.as_bytes()));
            if !is_admitted {
                return Err(AccessRefusal::Header { required: &rule.header });
            }
        }
        let tenant = match &self.tenants {
            Some(tenants) if category != ApiCategory::Health => {
                let identified = tenants.identify(key_of(header), category);
                Some(identified.map_err(AccessRefusal::Tenant)?)
            }
            Some(_) | None => None,
        };
        Ok(AccessGrant::new(category, tenant))
    }
}

/// Compares a secret with a caller's value. The time depends only on the lengths.
fn are_equal(sent: &[u8], secret: &[u8]) -> bool {
    let mut difference = u8::from(sent.len() != secret.len());
    for (index, expected) in secret.iter().enumerate() {
        let byte = sent.get(index).copied().unwrap_or_default();
        // Without the barrier, the compiler may leave the loop at the first difference.
        difference = black_box(difference | (byte ^ expected));
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::tenant::TenantNumber;
    use super::*;

    fn gate(groups: &[&str]) -> AccessGate {
        let mut rules = AccessRules::default();
        for group in groups {
            rules.add(group, "").unwrap();
        }
        AccessGate::new(rules)
    }

    #[test]
    fn an_open_gate_reads_no_header() {
        let gate = gate(&[]);
        assert!(gate.is_unrestricted());
        for category in ApiCategory::ALL {
            assert!(gate.admit(category, |_| panic!("a header was read")).is_ok());
        }
    }

    #[test]
    fn a_rule_concerns_its_own_category() {
        for restricted in ApiCategory::ALL {
            let gate = gate(&[&format!("{restricted}:key=value")]);
            assert!(!gate.is_unrestricted());
            for category in ApiCategory::ALL {
                let is_admitted = |value: Option<&'static [u8]>| {
                    gate.admit(category, |name| {
                        assert_eq!(name, "key");
                        value
                    })
                };
                assert_eq!(is_admitted(None).is_ok(), category != restricted);
                assert_eq!(is_admitted(Some(b"other")).is_ok(), category != restricted);
                assert!(is_admitted(Some(b"value")).is_ok());
            }
        }
    }

    #[test]
    fn a_refusal_names_the_header_and_not_the_value() {
        let gate = gate(&["health:key=value"]);
        let refusal = gate.admit(ApiCategory::Health, |_| None).unwrap_err();
        assert_eq!(refusal, AccessRefusal::Header { required: "key" });
        assert!(!format!("{refusal:?}").contains("value"));
    }

    /// Knows one key, which allows inference, and admits one request.
    #[derive(Debug, Default)]
    struct OneTenant {
        requests: AtomicU32,
    }

    const ONLY: TenantNumber = TenantNumber(NonZeroU32::MIN);

    impl TenantDirectory for OneTenant {
        fn identify(
            &self,
            key: Option<&[u8]>,
            category: ApiCategory,
        ) -> Result<TenantNumber, TenantRefusal> {
            match (key, category) {
                (None, _) => Err(TenantRefusal::MissingKey),
                (Some(b"good"), ApiCategory::Inference) => Ok(ONLY),
                (Some(b"good"), _) => Err(TenantRefusal::ForbiddenApi(category)),
                (Some(_), _) => Err(TenantRefusal::UnknownKey),
            }
        }

        fn count_request(&self, tenant: TenantNumber) -> Result<(), TenantRefusal> {
            assert_eq!(tenant, ONLY);
            match self.requests.fetch_add(1, Ordering::Relaxed) {
                0 => Ok(()),
                _ => Err(TenantRefusal::TooManyRequests { retry_after_ms: 7 }),
            }
        }
    }

    #[test]
    fn tenants_need_keys_for_everything_but_health() {
        let gate = AccessGate::default().with_tenants(Some(Arc::new(OneTenant::default())));
        assert!(!gate.is_unrestricted());
        let admit = |category, key: Option<&'static [u8]>| {
            gate.admit(category, |name| key.filter(|_| name == "x-api-key"))
        };
        let refused = |refusal| Err(AccessRefusal::Tenant(refusal));
        assert!(admit(ApiCategory::Health, None).is_ok());
        for category in ApiCategory::ALL.into_iter().filter(|one| *one != ApiCategory::Health) {
            assert_eq!(admit(category, None), refused(TenantRefusal::MissingKey));
            assert_eq!(admit(category, Some(b"bad")), refused(TenantRefusal::UnknownKey));
            if category != ApiCategory::Inference {
                let forbidden = refused(TenantRefusal::ForbiddenApi(category));
                assert_eq!(admit(category, Some(b"good")), forbidden);
            }
        }
        let grant = admit(ApiCategory::Inference, Some(b"good")).unwrap();
        assert_eq!(gate.count_request(grant), Ok(()));
        let exceeded = TenantRefusal::TooManyRequests { retry_after_ms: 7 };
        assert_eq!(gate.count_request(grant), Err(exceeded));
        // Requests without a tenant aren't limited.
        let health = admit(ApiCategory::Health, None).unwrap();
        assert_eq!(gate.count_request(health), Ok(()));
    }

    #[test]
    fn a_rule_applies_to_tenants_too() {
        let gate = gate(&["inference:key=value"]);
        let gate = gate.with_tenants(Some(Arc::new(OneTenant::default())));
        let admit = |names: &'static [&'static str]| {
            gate.admit(ApiCategory::Inference, |name| {
                let value = if name == "key" { &b"value"[..] } else { b"good" };
                names.contains(&name).then_some(value)
            })
        };
        assert!(admit(&["key", "x-api-key"]).is_ok());
        assert_eq!(admit(&["x-api-key"]), Err(AccessRefusal::Header { required: "key" }));
        let missing = AccessRefusal::Tenant(TenantRefusal::MissingKey);
        assert_eq!(admit(&["key"]), Err(missing));
    }

    #[test]
    fn values_are_equal_in_every_byte() {
        let secret = b"secret";
        assert!(are_equal(secret, secret));
        for wrong in [&b""[..], b"s", b"secre", b"secret ", b"Secret", b"secreT", b"secretsecret"] {
            assert!(!are_equal(wrong, secret), "{wrong:?}");
        }
        for index in 0..secret.len() {
            for bit in 0..8 {
                let mut wrong = *secret;
                wrong[index] ^= 1 << bit;
                assert!(!are_equal(&wrong, secret));
            }
        }
        assert!(!are_equal(b"secre\0", secret));
        assert!(!are_equal(b"secret\0", secret));
    }
}
