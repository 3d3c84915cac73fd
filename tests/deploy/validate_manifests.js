// Checks manifests of KEDA and of the Gateway API: JSON documents on standard input, by the packages @kubernetes-models
// in the folder KUBERNETES_MODELS. Fails with what is wrong.
const folder = require("path").resolve(process.env.KUBERNETES_MODELS, "node_modules/@kubernetes-models") + "/"
for (const document of JSON.parse(require("fs").readFileSync(0))) {
  const group = document.apiVersion.split("/")[0]
  // The package has GRPCRoute as it was before it became v1, with the same fields.
  const version = document.kind === "GRPCRoute" ? "v1alpha2" : document.apiVersion.split("/")[1]
  const models = folder + (group === "keda.sh" ? "keda" : "gateway-api")
  const { [document.kind]: Model } = require(`${models}/${group}/${version}/${document.kind}`)
  new Model({ ...document, apiVersion: `${group}/${version}` }).validate()
}
