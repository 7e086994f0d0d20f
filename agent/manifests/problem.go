// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"strings"
)

// Problem is something in the input that is not, or not as written, in force.
type Problem struct {
	// File is the path of the file, or of the directory when that is at fault.
	File string
	// Document counts the documents of the file from 1; 0 when the whole file is at fault.
	Document int
	// Line is the line in the file that the document starts at, from 1; 0 when unknown.
	Line int
	// Object is "Kind namespace/name" as far as it could be read.
	Object string
	// Message says what is wrong and what is in force instead.
	Message string
}

// String is one line for logs and the plan.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Document > 0 {
		fmt.Fprintf(&b, ": document %d", p.Document)
	}
	if p.Object != "" {
		b.WriteString(": " + p.Object)
	}
	return b.String() + ": " + p.Message
}
