//! TODO ('app',)

pub mod provider_news;
pub mod serve;
