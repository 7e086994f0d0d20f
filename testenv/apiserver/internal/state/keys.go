// SPDX-License-Identifier: Apache-2.0

package state

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ensureKeys reads or makes the admin's token and the account signing key.
func (d *Dir) ensureKeys() error {
	token, err := ensureFile(d.file(tokenFile), func() ([]byte, error) {
		return []byte(rand.Text()), nil
	})
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	d.token = string(token)
	// Columns: token, user, uid, groups. The group bypasses RBAC, which is
	// what cluster-admin means before any binding exists.
	line := d.token + ",admin,admin,system:masters\n"
	if err := writeFile(d.Tokens(), []byte(line)); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	if _, err := ensureFile(d.ServiceAccountKey(), newKeyPEM); err != nil {
		return fmt.Errorf("service account key: %w", err)
	}
	return nil
}

// WriteKubeconfig writes the administrator's kubeconfig and returns the same
// as a client configuration.
func (d *Dir) WriteKubeconfig(server string, ca []byte) (*rest.Config, error) {
	const name = "testapiserver"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: d.token}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name

	content, err := clientcmd.Write(*cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if err := writeFile(d.Kubeconfig(), content); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", d.Kubeconfig(), err)
	}
	return client, nil
}

// ensureFile returns the content of a file that create fills when it is absent.
func ensureFile(path string, create func() ([]byte, error)) ([]byte, error) {
	content, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return content, err
	}
	content, err = create()
	if err != nil {
		return nil, err
	}
	return content, writeFile(path, content)
}

func newKeyPEM() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
