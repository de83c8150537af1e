//! The files that the program contains: those of the dashboard and the OpenAPI document.
//!
//! A release build contains them compressed with gzip (`build.rs`), and sends them to most clients as they are. A debug build
//! reads them at each request, so that an edit is visible at once. In both, the modules and the styles are each one file.

use std::{
    borrow::Cow,
    io::{self, Read as _},
    sync::OnceLock,
};

use actix_web::{
    HttpRequest, HttpResponse, HttpResponseBuilder,
    http::header::{CONTENT_ENCODING, EntityTag, HeaderValue, VARY},
    web::Bytes,
};
use flate2::{
    Compression,
    read::{GzDecoder, GzEncoder},
};

use countersign_domain::changes::digest::{PartHasher, hex};
use countersign_http::{framing::EmbeddedBody, front};

#[cfg(not(embedded_files))]
#[path = "../bundle.rs"]
mod bundle;

/// A file of the program.
#[derive(Clone)]
pub struct EmbeddedFile {
    content: FileContent,
    /// The content of a compressed file, since a client that does not accept gzip asked for it.
    inflated: OnceLock<Bytes>,
    /// The hash of the file, since it was first served.
    hash: OnceLock<String>,
}

// All files with their names, sorted: `static FILES: [(&str, EmbeddedFile); N]`.
#[cfg(embedded_files)]
include!(concat!(env!("OUT_DIR"), "/embedded_files.rs"));

/// The content of a file as it is stored.
#[derive(Clone)]
#[allow(dead_code, reason = "a release build has only compressed files, and a debug build only others")]
enum FileContent {
    Gzip(Bytes),
    Plain(Bytes),
}

impl EmbeddedFile {
    const fn new(content: FileContent) -> Self {
        Self { content, inflated: OnceLock::new(), hash: OnceLock::new() }
    }

    /// Finds a file by its path below the folder of this crate, which must not lead out of it.
    #[cfg(embedded_files)]
    pub fn find(name: &str) -> Option<Cow<'static, Self>> {
        let index = FILES.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        Some(Cow::Borrowed(&FILES[index].1))
    }

    /// Finds a file by its path below the folder of this crate, which must not lead out of it.
    #[cfg(not(embedded_files))]
    pub fn find(name: &str) -> Option<Cow<'static, Self>> {
        let folder = env!("CARGO_MANIFEST_DIR");
        let content = match name.strip_prefix("assets/").filter(|name| bundle::NAMES.contains(name)) {
            Some(name) => bundle::join(&format!("{folder}/assets"), name)
                .map(String::into_bytes)
                .inspect_err(|error| tracing::error!(%error, "a file of the dashboard cannot be bundled")),
            None => std::fs::read(format!("{folder}/{name}")),
        };
        Some(Cow::Owned(Self::new(FileContent::Plain(content.ok()?.into()))))
    }

    /// Returns the entity tag, which is weak because it is the same for the compressed and the inflated file.
    pub fn entity_tag(&self) -> EntityTag {
        let (FileContent::Gzip(bytes) | FileContent::Plain(bytes)) = &self.content;
        let hash = self.hash.get_or_init(|| {
            let mut hasher = PartHasher::new("embedded file");
            hasher.add_part(bytes);
            hex(&hasher.finish_bytes()[..16])
        });
        EntityTag::new_weak(hash.clone())
    }

    /// Completes a response with the file, in an encoding that the client accepts.
    ///
    /// # Errors
    /// Returns an error if a compressed file is not in the format of gzip.
    pub fn respond(&self, request: &HttpRequest, mut response: HttpResponseBuilder) -> io::Result<HttpResponse> {
        response.insert_header((VARY, HeaderValue::from_static("Accept-Encoding")));
        response.extensions_mut().insert(EmbeddedBody);
        if front::accepts_gzip(request) {
            response.insert_header((CONTENT_ENCODING, HeaderValue::from_static("gzip")));
            return Ok(response.body(self.gzip()?));
        }
        Ok(response.body(self.content()?))
    }

    fn gzip(&self) -> io::Result<Bytes> {
        match &self.content {
            FileContent::Gzip(gzip) => Ok(gzip.clone()),
            FileContent::Plain(content) => {
                let mut gzip = Vec::new();
                GzEncoder::new(&**content, Compression::fast()).read_to_end(&mut gzip)?;
                Ok(gzip.into())
            }
        }
    }

    /// Returns the content. That of a compressed file is kept, so that clients that do not read it take no memory of their own.
    fn content(&self) -> io::Result<Bytes> {
        let gzip = match &self.content {
            FileContent::Gzip(gzip) => gzip,
            FileContent::Plain(content) => return Ok(content.clone()),
        };
        if let Some(content) = self.inflated.get() {
            return Ok(content.clone());
        }
        let mut content = Vec::new();
        GzDecoder::new(&**gzip).read_to_end(&mut content)?;
        Ok(self.inflated.get_or_init(|| content.into()).clone())
    }
}

#[cfg(test)]
pub mod tests {
    use std::fs;

    use actix_web::{body::to_bytes, test::TestRequest};

    use super::*;

    const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

    /// Returns the names of the dashboard's files with their content in the repository.
    pub fn assets() -> Vec<(String, String)> {
        fn add(folder: &str, assets: &mut Vec<(String, String)>) {
            for entry in fs::read_dir(format!("{FOLDER}/{folder}")).unwrap().map(Result::unwrap) {
                let name = format!("{folder}/{}", entry.file_name().to_str().unwrap());
                if entry.path().is_dir() {
                    add(&name, assets);
                } else {
                    assets.push((name, fs::read_to_string(entry.path()).unwrap()));
                }
            }
        }
        let mut assets = Vec::new();
        add("assets", &mut assets);
        assert!(assets.len() > 100);
        assets
    }

    #[test]
    fn every_file_is_found_as_it_is_in_the_repository() {
        for (name, content) in assets().iter().filter(|(name, _)| name.matches('/').count() == 1) {
            assert_eq!(EmbeddedFile::find(name).unwrap().content().unwrap(), content, "{name}");
        }
        let document = fs::read_to_string(format!("{FOLDER}/openapi.json")).unwrap();
        assert_eq!(EmbeddedFile::find("openapi.json").unwrap().content().unwrap(), document);
        for name in ["", "assets", "assets/", "assets/none.js"] {
            assert!(EmbeddedFile::find(name).is_none(), "{name}");
        }
    }

    #[actix::test]
    async fn only_clients_that_accept_gzip_get_it() {
        let file = EmbeddedFile::find("assets/index.html").unwrap();
        let compressed = EmbeddedFile::new(FileContent::Gzip(file.gzip().unwrap()));
        assert_eq!(compressed.content().unwrap(), file.content().unwrap());
        for (accept, encoding) in [("gzip, br", Some("gzip")), ("gzip;q=0", None), ("br", None), ("", None)] {
            let request = TestRequest::get().insert_header(("accept-encoding", accept)).to_http_request();
            let response = compressed.respond(&request, HttpResponse::Ok()).unwrap();
            let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!((header(CONTENT_ENCODING), header(VARY)), (encoding, Some("Accept-Encoding")), "{accept}");
            let body = to_bytes(response.into_body()).await.unwrap();
            assert_eq!(
                body,
                if encoding.is_some() { file.gzip().unwrap() } else { file.content().unwrap() },
                "{accept}"
            );
        }
    }
}
