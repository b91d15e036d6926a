//! Scratch files, each beside the file that events go to, so on the same disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::failure::failure;
use super::options::Options;
use crate::scratch::{ScratchName, ScratchSink};
use crate::sink::{Sink, SinkError};

/// Scratch files of one folder.
pub(in crate::sinks) struct FileScratch {
    folder: PathBuf,
}

impl Options {
    /// Scratch files beside this one.
    pub(in crate::sinks) fn scratch(&self) -> FileScratch {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        FileScratch { folder: folder.unwrap_or(Path::new(".")).to_owned() }
    }
}

impl FileScratch {
    fn path(&self, name: &ScratchName) -> PathBuf {
        self.folder.join(format!("{}.jsonl", name.topic()))
    }
}

#[async_trait]
impl ScratchSink for FileScratch {
    fn place(&self, name: &ScratchName) -> String {
        format!("the file {}", self.path(name).display())
    }

    async fn list(&self) -> Result<Vec<ScratchName>, SinkError> {
        let failed = |error: io::Error| failure("look into", &self.folder, &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let file = entry.map_err(failed)?.file_name();
            let file = file.to_str().and_then(|file| file.strip_suffix(".jsonl"));
            names.extend(file.and_then(ScratchName::of));
        }
        Ok(names)
    }

    async fn make(&self, name: &ScratchName) -> Result<(), SinkError> {
        self.connect(name).await?.close().await
    }

    async fn connect(&self, name: &ScratchName) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(Options { path: self.path(name) }.connect().await?))
    }

    async fn remove(&self, name: &ScratchName) -> Result<(), SinkError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failure("remove", &path, &error))
            }
            _ => Ok(()),
        }
    }
}
