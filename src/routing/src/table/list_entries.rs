//! Entries of lists, each rendered once per revision when it is first needed.

use std::sync::{Arc, OnceLock};

use serde_json::{to_value, value::RawValue};

use super::{
    RouteTarget,
    module_entries::{prompt_entry, resource_entry},
    revision_filter::{filter_prompt, filter_resource},
};
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
        filter: impl FnOnce(&str, Revision) -> Option<String>,
        write: impl FnOnce() -> String,
    ) -> &'a str {
        let text = self.0[revision as usize].get_or_init(|| match raw {
            Some(raw) => filter(raw.get(), revision).map(Into::into),
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

/// A prompt, resource or template with its provider.
pub struct ListedRoute<D> {
    pub provider: RouteTarget,
    pub def: D,
    rendered: RenderedEntry,
}

pub type PromptRoute = ListedRoute<PromptDef>;
/// A resource that an upstream lists.
pub type ResourceRoute = ListedRoute<ResourceDef>;
pub type TemplateRoute = ListedRoute<ResourceTemplateDef>;

impl<D> ListedRoute<D> {
    pub fn new(provider: RouteTarget, def: D) -> Self {
        Self { provider, def, rendered: RenderedEntry::default() }
    }
}

impl PromptRoute {
    /// Returns the prompt's entry in `prompts/list`.
    pub fn list_entry(&self, revision: Revision) -> &str {
        self.rendered.get_or_write(revision, self.def.raw.as_ref(), filter_prompt, || prompt_entry(&self.def, revision))
    }
}

impl ResourceRoute {
    /// Returns the resource's entry in `resources/list`.
    pub fn list_entry(&self, revision: Revision) -> &str {
        self.rendered.get_or_write(revision, self.def.raw.as_ref(), filter_resource, || {
            resource_entry(to_value(&self.def), revision)
        })
    }
}

impl TemplateRoute {
    /// Returns the template's entry in `resources/templates/list`.
    pub fn list_entry(&self, revision: Revision) -> &str {
        self.rendered.get_or_write(revision, self.def.raw.as_ref(), filter_resource, || {
            resource_entry(to_value(&self.def), revision)
        })
    }
}
