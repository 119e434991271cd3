//! A protocol's access rules, as configured at startup.

use std::fmt;

use super::category::ApiCategory;

/// A restriction of a category to callers that send this header with this value.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessRule {
    pub(super) header: String,
    pub(super) value: String,
}

/// Hides the value, a secret that must not get into a log.
impl fmt::Debug for AccessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("header", &self.header).finish_non_exhaustive()
    }
}

/// The rules of a protocol: at most one for each category.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    health: Option<AccessRule>,
    metadata: Option<AccessRule>,
    inference: Option<AccessRule>,
    shared_memory: Option<AccessRule>,
    model_config: Option<AccessRule>,
    model_repository: Option<AccessRule>,
    statistics: Option<AccessRule>,
    trace: Option<AccessRule>,
    logging: Option<AccessRule>,
}

/// A group of rules that is invalid or contradicts an earlier group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessRuleError {
    /// The text is not of the form `CATEGORY[,CATEGORY…]:KEY=VALUE`.
    Malformed,
    /// No category has this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// The category already has a rule.
    Repeated {
        /// The category.
        category: ApiCategory,
    },
}

impl AccessRules {
    /// Adds the rules of a group `CATEGORY[,CATEGORY…]:KEY=VALUE`. The header's name is the key,
    /// prefixed with `prefix`.
    ///
    /// # Errors
    ///
    /// The first mistake in the text.
    pub fn add(&mut self, group: &str, prefix: &str) -> Result<(), AccessRuleError> {
        let (names, rest) = group.split_once(':').ok_or(AccessRuleError::Malformed)?;
        let (key, value) = rest.split_once('=').ok_or(AccessRuleError::Malformed)?;
        if names.is_empty() || key.is_empty() || value.is_empty() {
            return Err(AccessRuleError::Malformed);
        }
        for name in names.split(',') {
            let Some(category) = ApiCategory::named(name) else {
                return Err(AccessRuleError::Unknown { name: name.to_owned() });
            };
            let rule = self.place(category);
            if rule.is_some() {
                return Err(AccessRuleError::Repeated { category });
            }
            *rule = Some(AccessRule { header: format!("{prefix}{key}"), value: value.to_owned() });
        }
        Ok(())
    }

    /// Returns true if nothing is restricted.
    pub fn is_empty(&self) -> bool {
        ApiCategory::ALL.into_iter().all(|category| self.get(category).is_none())
    }

    pub(super) const fn get(&self, category: ApiCategory) -> Option<&AccessRule> {
        match category {
            ApiCategory::Health => self.health.as_ref(),
            ApiCategory::Metadata => self.metadata.as_ref(),
            ApiCategory::Inference => self.inference.as_ref(),
            ApiCategory::SharedMemory => self.shared_memory.as_ref(),
            ApiCategory::ModelConfig => self.model_config.as_ref(),
            ApiCategory::ModelRepository => self.model_repository.as_ref(),
            ApiCategory::Statistics => self.statistics.as_ref(),
            ApiCategory::Trace => self.trace.as_ref(),
            ApiCategory::Logging => self.logging.as_ref(),
        }
    }

    const fn place(&mut self, category: ApiCategory) -> &mut Option<AccessRule> {
        match category {
            ApiCategory::Health => &mut self.health,
            ApiCategory::Metadata => &mut self.metadata,
            ApiCategory::Inference => &mut self.inference,
            ApiCategory::SharedMemory => &mut self.shared_memory,
            ApiCategory::ModelConfig => &mut self.model_config,
            ApiCategory::ModelRepository => &mut self.model_repository,
            ApiCategory::Statistics => &mut self.statistics,
            ApiCategory::Trace => &mut self.trace,
            ApiCategory::Logging => &mut self.logging,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds groups, and shows the rules or the error.
    #[track_caller]
    fn check(groups: &[&str], expected: &str) {
        let mut rules = AccessRules::default();
        let added = groups.iter().try_for_each(|group| rules.add(group, "p-"));
        let found = match added {
            Ok(()) => {
                let rule = |category| Some((category, rules.get(category)?));
                let shown = ApiCategory::ALL.into_iter().filter_map(rule);
                let shown =
                    shown.map(|(name, rule)| format!("{name}: {}={}", rule.header, rule.value));
                shown.collect::<Vec<_>>().join("; ")
            }
            Err(error) => format!("{error:?}"),
        };
        assert_eq!(found, expected, "{groups:?}");
    }

    #[test]
    fn groups_are_parsed() {
        check(&[], "");
        check(&["health:k=v"], "health: p-k=v");
        check(&["logging,trace:k=v"], "trace: p-k=v; logging: p-k=v");
        check(&["health:a=b", "metadata:c=d"], "health: p-a=b; metadata: p-c=d");
        // The first delimiters count.
        check(&["health:k:l=v=w:x,y"], "health: p-k:l=v=w:x,y");
    }

    #[test]
    fn malformed_groups_are_refused() {
        for group in ["", "health", "health:", "health:k", "health:k=", "health:=v", ":k=v"] {
            check(&[group], "Malformed");
        }
        check(&["health=k:v"], "Malformed");
        check(&["health:k=v", "x"], "Malformed");
    }

    #[test]
    fn unknown_and_repeated_categories_are_refused() {
        check(&["model-reposit:k=v"], "Unknown { name: \"model-reposit\" }");
        check(&["health,:k=v"], "Unknown { name: \"\" }");
        check(&["health, trace:k=v"], "Unknown { name: \" trace\" }");
        check(&["Health:k=v"], "Unknown { name: \"Health\" }");
        check(&["health:k=v", "trace,health:k=v"], "Repeated { category: Health }");
        check(&["trace,trace:k=v"], "Repeated { category: Trace }");
    }

    #[test]
    fn values_are_not_shown() {
        let mut rules = AccessRules::default();
        rules.add("health:key=secret", "").unwrap();
        let shown = format!("{rules:?}");
        assert!(shown.contains("key") && !shown.contains("secret"), "{shown}");
    }
}
