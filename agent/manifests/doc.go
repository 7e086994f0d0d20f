// SPDX-License-Identifier: Apache-2.0

// Package manifests is a source of Kubernetes objects that needs no cluster: it
// reads Service, EndpointSlice, Pod, Node and EgressShard objects from the YAML
// and JSON files of one directory and follows their changes.
//
// It checks that objects have the shape that the API server would ask for
// (kind, version, name, types of fields), applies no defaults besides the
// namespace, and judges nothing: what the objects mean is decided in package
// nat. It writes no file and does not descend into subdirectories.
//
// Bad input hurts as little as it can:
//
//   - An object that does not decode keeps its last good version; the other
//     objects of its file go on changing.
//   - A document in which no object can be recognised (a syntax error, no kind,
//     no name) could stand for any object of its file. While it is there, no
//     object of that file is removed.
//   - A file that cannot be read or split into documents keeps its whole last
//     good content, and so does a directory that is missing.
//   - An object that is defined twice has its first definition, by file name and
//     then by position.
//
// Each of these is listed by Problems until it is repaired.
//
//	src, err := manifests.Open("/etc/natplane", log)
//	go src.Run(ctx)
//	for range src.Changed() {
//		batch, complete := src.Take()
//		...
//	}
package manifests
