//! Command line flags, as a configuration of one pipeline.

use super::PIPELINE_DEFAULT;
use super::problem::Origin;
use super::tree::{Node, Table, Value};

/// What command line flags can say about a relay of one pipeline.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--from`: the database.
    pub from: Option<String>,
    /// `--to`: the sink.
    pub to: Option<String>,
    /// `--mode`.
    pub mode: Option<String>,
    /// `--progress`.
    pub progress: Option<String>,
    /// `--table`.
    pub table: Option<String>,
    /// `--topic`.
    pub topic: Option<String>,
    /// `--format`.
    pub format: Option<String>,
    /// `--allow-private`.
    pub allow_private: bool,
    /// `--listen`: where machines are answered.
    pub listen: Option<String>,
}

impl Flags {
    /// A tree with a source and one pipeline.
    pub(super) fn relay_tree(&self) -> Table {
        let mut sink = Table::default();
        set(&mut sink, "url", "--to", &self.to);
        set(&mut sink, "topic", "--topic", &self.topic);
        set(&mut sink, "format", "--format", &self.format);
        let allow_private = self.allow_private.then(|| "true".to_owned());
        set(&mut sink, "allow_private", "--allow-private", &allow_private);

        let mut pipeline = Table::default();
        pipeline.set("name", Node::text(PIPELINE_DEFAULT, Origin::Flag("--to")));
        set(&mut pipeline, "mode", "--mode", &self.mode);
        set(&mut pipeline, "progress", "--progress", &self.progress);
        pipeline.set("sink", node(Value::Table(sink), "--to"));

        let mut root = self.source_tree();
        let pipelines = vec![node(Value::Table(pipeline), "--to")];
        root.set("pipeline", node(Value::Array(pipelines), "--to"));
        if self.listen.is_some() {
            let mut http = Table::default();
            set(&mut http, "listen", "--listen", &self.listen);
            root.set("http", node(Value::Table(http), "--listen"));
        }
        root
    }

    /// A tree with a source alone.
    pub(super) fn source_tree(&self) -> Table {
        let mut source = Table::default();
        set(&mut source, "url", "--from", &self.from);
        set(&mut source, "table", "--table", &self.table);
        let mut root = Table::default();
        root.set("source", node(Value::Table(source), "--from"));
        root
    }
}

fn node(value: Value, flag: &'static str) -> Node {
    Node { value, origin: Origin::Flag(flag) }
}

fn set(table: &mut Table, key: &str, flag: &'static str, value: &Option<String>) {
    if let Some(value) = value {
        table.set(key, Node::text(value, Origin::Flag(flag)));
    }
}
