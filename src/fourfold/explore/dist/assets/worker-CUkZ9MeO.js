(function(){let e=`/fourfold`,t=`
import sys
sys.path.insert(0, "${e}")
from fourfold.explore.browser.stand_ins import stand_in
stand_in()
from fourfold.explore.browser.engine import answer
answer
`,n=globalThis,r=e=>n.postMessage(e),i;async function a(n){let r=o(n+`packages.zip`),{loadPyodide:i}=await import(
/* @vite-ignore */
`${n}pyodide.mjs`),a=await i({indexURL:n});return a.FS.mkdirTree(e),a.unpackArchive(await r,`zip`,{extractDir:e}),a.runPython(t)}async function o(e){let t=await fetch(e);if(!t.ok)throw Error(`${e}: ${t.status} ${t.statusText}`);return t.arrayBuffer()}n.addEventListener(`message`,({data:e})=>{`folder`in e?(i=a(e.folder),i.then(()=>r({kind:`ready`}),e=>r({kind:`failed`,message:String(e)}))):i?.then(t=>s(t,e))});function s(e,{id:t,name:n,body:i}){try{let a=e(n,i,(e,n)=>r({kind:`progress`,id:t,text:e,share:n})),[o,s]=a.toJs();a.destroy(),r({kind:`answer`,id:t,status:o,text:s})}catch(e){r({kind:`failed`,message:String(e)})}}})();