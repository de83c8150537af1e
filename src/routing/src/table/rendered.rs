//! Entries of lists, each written once per revision, when it is first asked for.

use std::sync::{Arc, OnceLock};

use serde_json::value::RawValue;

use super::{listing, revision_filter};
use crate::target::Target;
use countersign_protocol::Revision;
use countersign_provider::{PromptDef, ResourceDef, ResourceTemplateDef};

/// One entry in each revision. Where it is what an upstream wrote, that text is not kept again.
#[derive(Default)]
pub struct Rendered([OnceLock<Option<Box<str>>>; 5]);

impl Rendered {
    /// `passed` makes of an upstream's text what the revision has, or leaves it; `own` writes an entry of a module.
    pub fn text<'a>(
        &'a self,
        revision: Revision,
        raw: Option<&'a Arc<RawValue>>,
        passed: impl FnOnce(&str) -> Option<String>,
        own: impl FnOnce() -> String,
    ) -> &'a str {
        let text = self.0[revision as usize].get_or_init(|| match raw {
            Some(raw) => passed(raw.get()).map(Into::into),
            None => Some(own().into()),
        });
        text.as_deref().or_else(|| raw.map(|raw| raw.get())).unwrap_or_default()
    }

    /// Whether it was asked for.
    #[cfg(test)]
    pub fn is_written(&self, revision: Revision) -> bool {
        self.0[revision as usize].get().is_some()
    }
}

/// A prompt as it is reached.
pub struct PromptRoute {
    pub provider: Target,
    pub def: PromptDef,
    rendered: Rendered,
}

impl PromptRoute {
    #[must_use]
    pub fn new(provider: Target, def: PromptDef) -> Self {
        Self { provider, def, rendered: Rendered::default() }
    }

    /// The prompt's entry in `prompts/list`.
    #[must_use]
    pub fn listed(&self, revision: Revision) -> &str {
        let own = || listing::prompt(&self.def, revision);
        self.rendered.text(revision, self.def.raw.as_ref(), |raw| revision_filter::prompt(raw, revision), own)
    }
}

/// A resource that an upstream lists.
pub struct ResourceRoute {
    pub provider: Target,
    pub def: ResourceDef,
    rendered: Rendered,
}

impl ResourceRoute {
    #[must_use]
    pub fn new(provider: Target, def: ResourceDef) -> Self {
        Self { provider, def, rendered: Rendered::default() }
    }

    /// Its entry in `resources/list`.
    #[must_use]
    pub fn listed(&self, revision: Revision) -> &str {
        let own = || listing::resource(&self.def, revision);
        self.rendered.text(revision, self.def.raw.as_ref(), |raw| revision_filter::resource(raw, revision), own)
    }
}

/// A resource template.
pub struct TemplateRoute {
    pub provider: Target,
    pub def: ResourceTemplateDef,
    rendered: Rendered,
}

impl TemplateRoute {
    #[must_use]
    pub fn new(provider: Target, def: ResourceTemplateDef) -> Self {
        Self { provider, def, rendered: Rendered::default() }
    }

    /// Its entry in `resources/templates/list`.
    #[must_use]
    pub fn listed(&self, revision: Revision) -> &str {
        let own = || listing::template(&self.def, revision);
        self.rendered.text(revision, self.def.raw.as_ref(), |raw| revision_filter::resource(raw, revision), own)
    }
}
