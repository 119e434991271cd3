//! A door's gate.

use std::hint::black_box;

use super::category::ApiCategory;
use super::pass::AccessGrant;
use super::rules::AccessRules;

/// Admits callers according to the rules for a door's protocol.
#[derive(Clone, Debug, Default)]
pub struct AccessGate {
    /// `None` if nothing is restricted, so an open gate costs only one comparison.
    rules: Option<Box<AccessRules>>,
}

/// The refusal of a caller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AccessRefusal<'g> {
    header: &'g str,
}

impl AccessRefusal<'_> {
    /// The name of the header that the caller must send.
    pub const fn required_header(&self) -> &str {
        self.header
    }
}

impl AccessGate {
    /// Makes a gate with these rules.
    pub fn new(rules: AccessRules) -> Self {
        Self { rules: (!rules.is_empty()).then(|| Box::new(rules)) }
    }

    /// Returns true if the gate admits all callers, so that no headers need to be collected.
    pub const fn is_unrestricted(&self) -> bool {
        self.rules.is_none()
    }

    /// Admits a caller to the APIs of a category if the category has no rule, or if `header` finds
    /// the value that the rule requires. `header` is called only if there is a rule.
    ///
    /// The time taken does not reveal how much of a wrong value is correct.
    ///
    /// # Errors
    ///
    /// A refusal that contains the header's name.
    #[inline]
    pub fn admit<'h>(
        &self,
        category: ApiCategory,
        header: impl FnOnce(&str) -> Option<&'h [u8]>,
    ) -> Result<AccessGrant, AccessRefusal<'_>> {
        let rule = self.rules.as_ref().and_then(|rules| rules.get(category));
        let Some(rule) = rule else { return Ok(AccessGrant::new(category)) };
        match header(&rule.header) {
            Some(value) if are_equal(value, rule.value.as_bytes()) => {
                Ok(AccessGrant::new(category))
            }
            Some(_) | None => Err(AccessRefusal { header: &rule.header }),
        }
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
        assert_eq!(refusal.required_header(), "key");
        assert!(!format!("{refusal:?}").contains("value"));
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
