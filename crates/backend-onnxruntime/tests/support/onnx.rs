//! Writes small ONNX models in ONNX's protobuf encoding.

/// An ONNX element type.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Element(pub(crate) u64);

pub(crate) const FLOAT: Element = Element(1);
pub(crate) const INT32: Element = Element(6);
pub(crate) const INT64: Element = Element(7);
pub(crate) const STRING: Element = Element(8);
pub(crate) const BOOL: Element = Element(9);
pub(crate) const UINT64: Element = Element(13);
pub(crate) const FLOAT8: Element = Element(17);

/// Builds a message.
#[derive(Clone, Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    fn message(self, field: u64, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }
}

/// Builds a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    message: Message,
    /// The domain of custom operators; empty if there are none.
    domain: &'static str,
}

/// The location of an initializer's bytes.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Data<'a> {
    /// In the model file.
    Here(&'a [u8]),
    /// In another file next to the model file.
    File(&'a str),
}

impl Graph {
    /// Adds an input. A dimension of -1 is variable.
    pub(crate) fn input(self, name: &str, element: Element, dims: &[i64]) -> Self {
        Self {
            message: self.message.message(11, &value_info(name, &tensor_type(element, dims))),
            ..self
        }
    }

    pub(crate) fn output(self, name: &str, element: Element, dims: &[i64]) -> Self {
        Self {
            message: self.message.message(12, &value_info(name, &tensor_type(element, dims))),
            ..self
        }
    }

    /// Adds an output that is not a tensor.
    pub(crate) fn sequence_output(self, name: &str, element: Element) -> Self {
        let sequence = Message::default().message(1, &tensor_type(element, &[]));
        let value_type = Message::default().message(4, &sequence);
        Self { message: self.message.message(12, &value_info(name, &value_type)), ..self }
    }

    pub(crate) fn node(self, operator: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        self.node_with(operator, inputs, outputs, &[])
    }

    /// Adds a node with integer attributes.
    pub(crate) fn node_with(
        self,
        operator: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[(&str, u64)],
    ) -> Self {
        const INTEGER: u64 = 2;
        let mut node = Message::default();
        for name in inputs {
            node = node.text(1, name);
        }
        for name in outputs {
            node = node.text(2, name);
        }
        node = node.text(4, operator);
        for &(name, value) in attributes {
            let attribute = Message::default().text(1, name).number(3, value).number(20, INTEGER);
            node = node.message(5, &attribute);
        }
        Self { message: self.message.message(1, &node), ..self }
    }

    pub(crate) fn initializer(
        self,
        name: &str,
        element: Element,
        dims: &[u64],
        data: Data,
    ) -> Self {
        let mut tensor = Message::default();
        for dim in dims {
            tensor = tensor.number(1, *dim);
        }
        tensor = tensor.number(2, element.0).text(8, name);
        tensor = match data {
            Data::Here(bytes) => tensor.bytes(9, bytes),
            Data::File(file) => {
                let entry = Message::default().text(1, "location").text(2, file);
                tensor.message(13, &entry).number(14, 1)
            }
        };
        Self { message: self.message.message(5, &tensor), ..self }
    }

    /// Adds a node with an operator from `domain`.
    pub(crate) fn node_of(
        self,
        domain: &'static str,
        operator: &str,
        inputs: &[&str],
        outputs: &[&str],
    ) -> Self {
        let mut node = Message::default();
        for name in inputs {
            node = node.text(1, name);
        }
        for name in outputs {
            node = node.text(2, name);
        }
        node = node.text(4, operator).text(7, domain);
        Self { message: self.message.message(1, &node), domain }
    }

    /// The contents of the model file.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let opset = |domain, version| Message::default().text(1, domain).number(2, version);
        let graph = self.message.text(2, "graph");
        let mut model = Message::default().number(1, 9).message(7, &graph);
        model = model.message(8, &opset("", 20));
        if !self.domain.is_empty() {
            model = model.message(8, &opset(self.domain, 1));
        }
        model.0
    }
}

/// A graph that returns its input `INPUT0` as `OUTPUT0`.
pub(crate) fn identity(element: Element, dims: &[i64]) -> Graph {
    Graph::default().input("INPUT0", element, dims).output("OUTPUT0", element, dims).node(
        "Identity",
        &["INPUT0"],
        &["OUTPUT0"],
    )
}

fn value_info(name: &str, value_type: &Message) -> Message {
    Message::default().text(1, name).message(2, value_type)
}

fn tensor_type(element: Element, dims: &[i64]) -> Message {
    let mut shape = Message::default();
    for dim in dims {
        let size = match u64::try_from(*dim) {
            Ok(size) => Message::default().number(1, size),
            Err(_) => Message::default().text(2, "any"),
        };
        shape = shape.message(1, &size);
    }
    let tensor = Message::default().number(1, element.0).message(2, &shape);
    Message::default().message(1, &tensor)
}
