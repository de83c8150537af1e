//! Entries of lists, each rendered once per revision when it is first needed.

use std::sync::{Arc, OnceLock};

use serde_json::value::RawValue;

use super::{listing, revision_filter};
use crate::target::RouteTarget;
use countersign_protocol::Revision;
use countersign_provider::{PromptDef, ResourceDef, ResourceTemplateDef};

/// One entry in each revision. If the upstream's text can be used unchanged, it is not stored again.
#[derive(Default)]
pub struct RenderedEntry([OnceLock<Option<Box<str>>>; 5]);

impl RenderedEntry {
    /// Returns the entry's text in a revision. `filter` adapts an upstream's text to the revision (`None` keeps it),
    /// and `write` renders an entry of a module.
    pub fn get_or_write<'a>(
        &'a self,
        revision: Revision,
        raw: Option<&'a Arc<RawValue>>,
        filter: impl FnOnce(&str) -> Option<String>,
        write: impl FnOnce() -> String,
    ) -> &'a str {
        let text = self.0[revision as usize].get_or_init(|| match raw {
            Some(raw) => filter(raw.get()).map(Into::into),
            None => Some(write().into()),
        });
        text.as_deref().or_else(|| raw.map(|raw| raw.get())).unwrap_or_default()
    }

    /// Returns `true` if the entry has been rendered for the revision.
    #[cfg(test)]
    pub fn is_rendered(&self, revision: Revision) -> bool {
        self.0[revision as usize].get().is_some()
    }
}

/// A prompt and its provider.
pub struct PromptRoute {
    pub provider: RouteTarget,
    pub def: PromptDef,
    rendered: RenderedEntry,
}

impl PromptRoute {
    #[must_use]
    pub fn new(provider: RouteTarget, def: PromptDef) -> Self {
        Self { provider, def, rendered: RenderedEntry::default() }
    }

    /// Returns the prompt's entry in `prompts/list`.
    #[must_use]
    pub fn list_entry(&self, revision: Revision) -> &str {
        let write = || listing::prompt_entry(&self.def, revision);
        self.rendered.get_or_write(
            revision,
            self.def.raw.as_ref(),
            |raw| revision_filter::filter_prompt(raw, revision),
            write,
        )
    }
}

/// A resource that an upstream lists.
pub struct ResourceRoute {
    pub provider: RouteTarget,
    pub def: ResourceDef,
    rendered: RenderedEntry,
}

impl ResourceRoute {
    #[must_use]
    pub fn new(provider: RouteTarget, def: ResourceDef) -> Self {
        Self { provider, def, rendered: RenderedEntry::default() }
    }

    /// Returns the resource's entry in `resources/list`.
    #[must_use]
    pub fn list_entry(&self, revision: Revision) -> &str {
        let write = || listing::resource_entry(&self.def, revision);
        self.rendered.get_or_write(
            revision,
            self.def.raw.as_ref(),
            |raw| revision_filter::filter_resource(raw, revision),
            write,
        )
    }
}

/// A resource template and its provider.
pub struct TemplateRoute {
    pub provider: RouteTarget,
    pub def: ResourceTemplateDef,
    rendered: RenderedEntry,
}

impl TemplateRoute {
    #[must_use]
    pub fn new(provider: RouteTarget, def: ResourceTemplateDef) -> Self {
        Self { provider, def, rendered: RenderedEntry::default() }
    }

    /// Returns the template's entry in `resources/templates/list`.
    #[must_use]
    pub fn list_entry(&self, revision: Revision) -> &str {
        let write = || listing::template_entry(&self.def, revision);
        self.rendered.get_or_write(
            revision,
            self.def.raw.as_ref(),
            |raw| revision_filter::filter_resource(raw, revision),
            write,
        )
    }
}
