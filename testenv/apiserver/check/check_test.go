// SPDX-License-Identifier: Apache-2.0

package check
import (
_ "github.com/stretchr/testify/require"
_ "k8s.io/client-go/dynamic"
_ "k8s.io/apimachinery/pkg/util/wait"
)
